"""The roles, who acts with which, and the rule that stands beside each endpoint. Light: clients import it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from deploy.settings import PersonRole

MachineRole = Literal["detector", "updater"]
Role = Literal[PersonRole, MachineRole]
"""viewer: looks at everything. reviewer: labels, imports and asks for updates too. approver: approves,
rejects and rolls back too. admin: gives tokens too. detector and updater: machines, for their own calls."""

PEOPLE: tuple[PersonRole, ...] = get_args(PersonRole)
"""Each may all that those before it may."""

RULE = "x-forgewatch-roles"
"""Where an endpoint's description in OpenAPI says who may call it."""
ANYONE = "anyone"
"""The rule of an endpoint that asks nobody who they are."""


def least(person: PersonRole, *machines: MachineRole) -> dict[str, Any]:
    """An endpoint's rule, for its `openapi_extra`: the least role of a person, and the machines that may."""
    return {RULE: [*PEOPLE[PEOPLE.index(person) :], *machines]}


def anyone() -> dict[str, Any]:
    """The rule of an endpoint that asks nobody who they are, for its `openapi_extra`."""
    return {RULE: [ANYONE]}


def rule_of(openapi_extra: Mapping[str, Any] | None) -> frozenset[str]:
    """The roles that an endpoint's rule names; none where it has no rule."""
    return frozenset((openapi_extra or {}).get(RULE, ()))


@dataclass(frozen=True)
class Person:
    """Who acts: a person or a machine. by: what says so.

    loopback: nothing does; the stack has no tokens, and whoever reaches it is taken for its owner.
    """

    name: str
    roles: frozenset[Role]
    by: Literal["token", "session", "proxy", "loopback"]

    def may(self, rule: frozenset[str]) -> bool:
        """Whether an endpoint of this rule lets them."""
        return ANYONE in rule or not rule.isdisjoint(self.roles)


class TokenRequest(BaseModel):
    """Who is to get a token."""

    name: str = Field(min_length=1, max_length=200, description="who acts with it, as the record will say")
    role: Role
    days: int = Field(90, ge=1, le=3650, description="until it expires")


class TokenEntry(BaseModel):
    """A token as the list shows it. What it reads is known to its holder alone."""

    name: str
    role: Role
    made_at: datetime
    made_by: str
    expires_at: datetime
    used_at: datetime | None = Field(description="its last use, to the minute; null: never")
    revoked_at: datetime | None
    revoked_by: str | None


class TokenMade(TokenEntry):
    """A new token, shown this once."""

    token: str
