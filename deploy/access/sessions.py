"""Browser sessions: a cookie that names a row on the server, for as long as its token is good."""

import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Engine, delete, select, update

from deploy.access.roles import Person
from deploy.access.tokens import NOBODY, Tokens, hash_of, sessions, utc_now
from deploy.record.chain import Act, append
from memory.database import READS

COOKIE = "__Host-forgewatch"
"""The prefix has browsers take it from this very host alone, over TLS or loopback, for every path."""

IDLE = timedelta(minutes=30)
WHOLE = timedelta(hours=12)
_SEEN_NOTED = timedelta(minutes=1)
_REFUSAL_NOTED = timedelta(minutes=10)
"""At most so often: who has no token fills no record."""
_ADDRESSES = 8
"""of refused logins, that are put on record"""


class Sessions:
    """The sessions of every browser. Safe to use from several threads and processes.

    Every method raises SQLAlchemyError.
    """

    def __init__(self, engine: Engine, tokens: Tokens, now: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._tokens, self._now = engine, tokens, now
        self._lock = threading.Lock()
        self._refused, self._refused_from = 0, set[str]()  # logins, since the last of them went on record
        self._refusal_noted: datetime | None = None

    def begin(self, token: str) -> str | None:
        """The id of a new session for the bearer of a token; None where the token is not good.

        Sessions that are over are forgotten.
        """
        if (person := self._tokens.person_of(hash_of(token))) is None:
            return None
        session, now = secrets.token_urlsafe(32), self._now()
        over = (sessions.c.seen_at <= now - IDLE) | (sessions.c.begun_at <= now - WHOLE)
        row = {"hash": hash_of(session), "token": hash_of(token), "begun_at": now, "seen_at": now}
        with self._engine.begin() as connection:
            connection.execute(delete(sessions).where(over))
            connection.execute(sessions.insert().values(row))
            append(connection, *self._refusals(), Act(person.name, "log in", "page"))
        return session

    def refuse(self, address: str) -> None:
        """Put a refused login on record, at the latest with the next one that is let in."""
        now = self._now()
        with self._lock:
            self._refused += 1
            if len(self._refused_from) < _ADDRESSES:
                self._refused_from.add(address)
            if self._refusal_noted is not None and now - self._refusal_noted < _REFUSAL_NOTED:
                return
            self._refusal_noted = now
        with self._engine.begin() as connection:
            append(connection, *self._refusals())

    def _refusals(self) -> list[Act]:
        with self._lock:
            details = {"logins": self._refused, "from": sorted(self._refused_from)}
            self._refused, self._refused_from = 0, set()
        if not details["logins"]:
            return []
        return [Act(NOBODY, "refuse login", "page", details)]

    def person_of(self, session: str) -> Person | None:
        """Whose session this is; None where it is unknown or over, or its token is no longer good."""
        mine = sessions.c.hash == hash_of(session)
        with self._engine.connect().execution_options(**{READS: True}) as connection:
            row = connection.execute(select(sessions).where(mine)).first()
        now = self._now()
        if row is None or now - row.seen_at >= IDLE or now - row.begun_at >= WHOLE:
            return None
        person = self._tokens.person_of(row.token)
        if person is not None and now - row.seen_at >= _SEEN_NOTED:
            with self._engine.begin() as connection:
                connection.execute(update(sessions).where(mine).values(seen_at=now))
        return None if person is None else replace(person, by="session")

    def end(self, session: str, by: str) -> None:
        """Forget a session of this person, if there is one."""
        with self._engine.begin() as connection:
            if connection.execute(delete(sessions).where(sessions.c.hash == hash_of(session))).rowcount:
                append(connection, Act(by, "log out", "page"))
