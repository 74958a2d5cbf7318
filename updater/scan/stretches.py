"""Which frames of a forged clip are forged: one to three stretches of at least nine frames."""

from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """The frames first, first + 1, … end - 1."""

    first: int
    end: int


SHORTEST = 9
"""frames of a stretch, forged or real: ForgeryNet's bound"""
MOST = 3
_TO_THE_EDGE = 0.15


def draw_stretches(rng: np.random.Generator, frames: int) -> tuple[Stretch, ...]:
    """Draw forged stretches of a clip of so many frames, in order; some begin or end with the clip.

    What lies between and beside them is real, and no shorter than they may be. At least one frame in ten is
    real. Raises ValueError for a clip that has no room for one forged and one real stretch.
    """
    if frames < 2 * SHORTEST:
        raise ValueError(f"a clip of {frames} frames has no room for a forged and a real stretch")
    room = (frames // SHORTEST - 1) // 2
    forged = int(rng.integers(1, max(1, min(MOST, room)) + 1))
    # Stretches take turns: real, forged, real, … forged, real; the outer real ones may be missing.
    first, last = (bool(rng.random() >= _TO_THE_EDGE) for _ in range(2))
    if not (first or last) and forged == 1:
        first = True
    parts = 2 * forged - 1 + first + last
    if parts * SHORTEST > frames:
        parts, first, last = 2, True, False
    spare = rng.multinomial(frames - parts * SHORTEST, rng.dirichlet(np.ones(parts)))
    ends = np.cumsum(SHORTEST + spare)
    starts = ends - SHORTEST - spare
    return tuple(Stretch(int(starts[i]), int(ends[i])) for i in range(int(first), parts, 2))
