"""Browser sessions: a cookie that names a row on the server, for as long as its token is good."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Engine, delete, select, update

from deploy.access.roles import Person
from deploy.access.schema import sessions
from deploy.access.tokens import Tokens, hash_of, utc_now
from deploy.record.acts import Act, append
from memory.database import READS

COOKIE = "__Host-forgewatch"
"""The prefix has browsers take it from this very host alone, over TLS or loopback, for every path."""

IDLE = timedelta(minutes=30)
WHOLE = timedelta(hours=12)
_SEEN_NOTED = timedelta(minutes=1)


class Sessions:
    """The sessions of every browser. Safe to use from several threads and processes.

    Every method raises SQLAlchemyError.
    """

    def __init__(self, engine: Engine, tokens: Tokens, now: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._tokens, self._now = engine, tokens, now

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
            append(connection, Act(person.name, "log in", "page"))
        return session

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

    def end(self, session: str) -> None:
        """Forget a session, if there is one."""
        with self._engine.begin() as connection:
            connection.execute(delete(sessions).where(sessions.c.hash == hash_of(session)))
