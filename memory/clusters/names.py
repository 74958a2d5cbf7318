"""Names of clusters."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import count

from memory.records import CLUSTER_ID_LENGTH, CLUSTER_LETTERS


def names_of(members: Sequence[str]) -> Iterator[str]:
    """Yield names for a cluster, which follow from its members alone: six characters to type.

    The first is to be taken, or the next where other members already bear it.
    """
    for turn in count():
        said = "\n".join([*sorted(members), *([str(turn)] if turn else [])])
        number = int.from_bytes(hashlib.sha256(said.encode()).digest()[:8])
        base = len(CLUSTER_LETTERS)
        yield "".join(CLUSTER_LETTERS[number // base**place % base] for place in range(CLUSTER_ID_LENGTH))
