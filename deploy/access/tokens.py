"""Tokens: who bears which role. Shown once, kept as SHA-256 in deploy's database."""

import hashlib
import secrets
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import Column, Engine, String, Table, select, update

from deploy.access.roles import (
    PEOPLE,
    Person,
    Role,
    TokenEntry,
    TokenMade,
    TokenRequest,
    checked_name,
    identity_of,
)
from deploy.record.chain import Act, append, metadata
from deploy.settings import DeploySettings
from memory.database import READS
from updater.schema import UtcDateTime

tokens = Table(
    "deploy_tokens",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("made_at", UtcDateTime, nullable=False),
    Column("made_by", String(200), nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("used_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("revoked_by", String(200)),
)
"""No row is ever deleted: a stack that had a person's token once is never again open to everybody."""

sessions = Table(
    "deploy_sessions",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("token", String(64), nullable=False),
    Column("begun_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
)
"""token: the hash of the one that began the session; what ends the token ends the session."""


SHARED = "shared token"
"""Whom FORGEWATCH_DEPLOY_TOKEN names: an admin whom several people may be."""
NOBODY = "nobody"
"""Who the record says tried to log in where the token named none."""
OWN = frozenset({SHARED, NOBODY, "deploy server", "updater", "detector", "memory", "rollout", "retraction"})
"""Names under which no person may act."""

_USE_NOTED = timedelta(minutes=1)


class TokenError(Exception):
    """The token cannot be given or revoked as asked; fatal for the request, nothing was written."""


class UnknownTokenError(TokenError):
    """Nobody of this name has a token that could be revoked."""


def utc_now() -> datetime:
    """The time, aware, in UTC."""
    return datetime.now(UTC)


def hash_of(token: str) -> str:
    """What is kept of a token: 256 random bits need neither salt nor a slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """Those of the settings and those of the database. Safe to use from several threads and processes."""

    def __init__(
        self, engine: Engine, settings: DeploySettings, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._engine, self._now = engine, now
        given: list[tuple[str, Role]] = [(SHARED, "admin"), ("detector", "detector"), ("updater", "updater")]
        values = (settings.token, settings.detector_token, settings.updater_token)
        self._of_settings = {
            hash_of(value.get_secret_value()): Person(name, frozenset({role}), "token")
            for value, (name, role) in reversed(list(zip(values, given, strict=True)))
            if value is not None
        }
        self._people = settings.token is not None

    def for_people(self) -> bool:
        """Whether any person was ever given a token. Raises SQLAlchemyError."""
        if not self._people:
            first = select(tokens.c.hash).where(tokens.c.role.in_(PEOPLE)).limit(1)
            with self._engine.connect().execution_options(**{READS: True}) as connection:
                self._people = connection.execute(first).first() is not None
        return self._people

    def person_of(self, token_hash: str) -> Person | None:
        """Whom the token of this hash names; None where it is unknown, expired or revoked.

        Raises SQLAlchemyError.
        """
        if (person := self._of_settings.get(token_hash)) is not None:
            return person
        with self._engine.connect().execution_options(**{READS: True}) as connection:
            row = connection.execute(select(tokens).where(tokens.c.hash == token_hash)).first()
        now = self._now()
        if row is None or row.revoked_at is not None or row.expires_at <= now:
            return None
        if row.used_at is None or now - row.used_at >= _USE_NOTED:
            with self._engine.begin() as connection:
                connection.execute(update(tokens).where(tokens.c.hash == token_hash).values(used_at=now))
        return Person(row.name, frozenset({row.role}), "token")

    def add(self, wanted: TokenRequest, by: Person) -> TokenMade:
        """Give somebody a token, in the name of `by`. Raises TokenError and SQLAlchemyError."""
        name = checked_name(wanted.name)
        if name is None:
            raise TokenError(f"{wanted.name!r} is no name: 1 to 200 characters, none of them unseen")
        if identity_of(name) in OWN and wanted.role in PEOPLE:
            raise TokenError(f"{name!r} is the name of a part of Forgewatch: choose another")
        if by.by == "loopback" and wanted.role in PEOPLE and wanted.role != "admin":
            raise TokenError(
                "the first token of a person must be an admin's (--role admin): from then on nobody gets in"
                " without one"
            )
        token, now = f"fw_{secrets.token_urlsafe(32)}", self._now()
        row = {
            "name": name,
            "role": wanted.role,
            "made_at": now,
            "made_by": by.name,
            "expires_at": now + timedelta(days=wanted.days),
        }
        valid = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at > now)
        with self._engine.begin() as connection:
            if spelled := _same_names(connection.scalars(select(tokens.c.name).where(valid)), name):
                raise TokenError(f"{spelled[0]} has a token: revoke it first (`forgewatch token revoke`)")
            connection.execute(tokens.insert().values(hash=hash_of(token), **row))
            details = {"role": wanted.role, "expires_at": str(row["expires_at"])}
            append(connection, Act(by.name, "add token", f"token of {name}", details))
        unset = dict.fromkeys(("used_at", "revoked_at", "revoked_by"))
        return TokenMade.model_validate({**row, **unset, "token": token})

    def entries(self) -> list[TokenEntry]:
        """Every token of the database that ever was, the newest first. Raises SQLAlchemyError."""
        with self._engine.connect().execution_options(**{READS: True}) as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.made_at.desc())).mappings().all()
        return [TokenEntry.model_validate(dict(row)) for row in rows]

    def revoke(self, name: str, by: str) -> TokenEntry:
        """End the token of this name at once. Raises UnknownTokenError and SQLAlchemyError."""
        with self._engine.begin() as connection:
            names = _same_names(connection.scalars(select(tokens.c.name).distinct()), name)
            theirs = tokens.c.name.in_(names) & tokens.c.revoked_at.is_(None)
            ended = connection.execute(
                update(tokens).where(theirs).values(revoked_at=self._now(), revoked_by=by)
            )
            if not ended.rowcount:
                raise UnknownTokenError(f"{name} has no token that could be revoked")
            newest = select(tokens).where(tokens.c.name.in_(names)).order_by(tokens.c.made_at.desc())
            row = connection.execute(newest).mappings().first()
            assert row is not None
            append(connection, Act(by, "revoke token", f"token of {row['name']}"))
            return TokenEntry.model_validate(dict(row))


def _same_names(names: Iterable[str], name: str) -> list[str]:
    return [holder for holder in names if identity_of(holder) == identity_of(name)]
