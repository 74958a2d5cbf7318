"""Which distortions a file gets: mixes of different ones in drawn order, at drawn levels."""

from collections.abc import Sequence

import numpy as np

from updater.distortions.distortion import LEVELS, DistortionError, Step
from updater.distortions.methods import DEEPERFORENSICS, DISTORTIONS, step

MIXED = (2, 3, 4)
"""How many distortions a mix may have."""
SHARE_OF_MIXES, SHARE_OF_SINGLES = 0.98, 0.01
"""Of ForgeryNet's files; the rest have none."""


def drawn(
    rng: np.random.Generator,
    count: int = 1,
    level: int | None = None,
    names: Sequence[str] = tuple(DEEPERFORENSICS),
) -> tuple[Step, ...]:
    """Draw so many different distortions, in the order drawn, each at `level` or at a level of its own.

    All names and levels are equally likely, as in the published metas. Raises DistortionError where there
    are fewer names than asked for.
    """
    if count > len(names):
        raise DistortionError(f"a mix of {count} cannot be drawn from {len(names)} distortions")
    chosen = [names[place] for place in rng.choice(len(names), count, replace=False)] if count else []
    return tuple(step(name, int(rng.choice(LEVELS)) if level is None else level) for name in chosen)


def drawn_by_the_law_of_files(rng: np.random.Generator, names: Sequence[str]) -> tuple[Step, ...]:
    """Draw what one of ForgeryNet's files carries: 98 % a mix of 2 to 4, 1 % a single one, 1 % none.

    A mix has no more than there are names. Without names there is none.
    """
    share = rng.random()
    count = int(share < SHARE_OF_MIXES + SHARE_OF_SINGLES)
    if share < SHARE_OF_MIXES:
        count = int(rng.choice(MIXED))
    return drawn(rng, min(count, len(names)), names=names)


def without_kinds(names: Sequence[str], kinds: frozenset[str]) -> tuple[str, ...]:
    """Keep the names of the distortions that have nothing of these kinds."""
    return tuple(name for name in names if not DISTORTIONS[name].kinds & kinds)
