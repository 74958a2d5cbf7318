"""Which verdicts are audited: a keyed hash of the id draws them, with a chance that is known."""

import hashlib
import hmac
import secrets

from sqlalchemy import Connection, insert, select

from memory.schema import audit_key

DAY_MS = 86_400_000


def is_drawn(key: bytes, id_: str, chance: float) -> bool:
    """Say whether an id is drawn. Whoever lacks the key cannot tell, and an id is always drawn alike."""
    if chance <= 0:
        return False
    number = int.from_bytes(hmac.digest(key, id_.encode(), hashlib.sha256)[:8])
    return number < chance * 2**64


def key_of(connection: Connection) -> bytes:
    """Return this memory's key, which is made once."""
    key = connection.scalar(select(audit_key.c.key))
    if key is None:
        key = secrets.token_bytes(32)
        connection.execute(insert(audit_key).values(id=1, key=key))
    return bytes(key)
