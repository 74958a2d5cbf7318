"""The roles, who acts with which, and the rule that stands beside each endpoint. Light: clients import it."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
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


# Letters and marks that are printable by Unicode and show nothing, or alter only how another is drawn.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def checked_name(text: str) -> str | None:
    """A name as the record may hold it: 1 to 200 characters that show, by NFKC; None where it is none."""
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    seen = text.strip().isprintable() and name.isprintable() and not _UNSEEN.search(text + name)
    return name if seen and 0 < len(name) <= 200 else None


def identity_of(name: str) -> str:
    """Whom a name means: spellings that Unicode folds into one (NFKC, case, spaces) are one person."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(folded.split())


def givers_of(name: str, given: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Identities of whoever gave this person a token, ever, of whoever gave those one, and so on.

    given: of each token that ever was, who gave it and to whom.
    """
    pairs = {(identity_of(giver), identity_of(holder)) for giver, holder in given}
    above, new = set[str](), {identity_of(name)}
    while new:
        new = {giver for giver, holder in pairs if holder in new} - above
        above |= new
    return frozenset(above - {identity_of(name)})


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
