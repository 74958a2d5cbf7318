"""What detectors and deploy agree on: which items are shared, how words on them are signed. Pure."""

import hashlib
import hmac

SIGNATURE = "signature"
"""Header of a comparison or an outcome: HMAC-SHA256 of its value, by its detector's token for deploy."""

# A worker's hindrance while it waits for its first release.
NO_RELEASE = "no release is served yet"


def in_share(item_id: str, share: float) -> bool:
    """Whether an id belongs to a share of all ids, in [0, 1].

    SHA-256 places each id evenly and for good, so a larger share holds all of a smaller one's. The id is
    topic, partition and offset: the broker gives it, so that no producer can choose who scores its media.
    """
    place = int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:8])
    return place < share * 2**64


def sign(key: bytes, value: bytes) -> bytes:
    """Return the signature of a comparison's value: HMAC-SHA256, hexadecimal, ASCII."""
    return hmac.new(key, value, "sha256").hexdigest().encode()


def signed(key: bytes | None, value: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a comparison or an outcome; None: nothing signs it."""
    return () if key is None else ((SIGNATURE, sign(key, value)),)
