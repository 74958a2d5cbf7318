"""GB of DeeperForensics-1.0: a Gaussian of so many taps, σ a sixth of them; in 256ths, as OpenCV has it."""

import numpy as np

from updater.filters import COLUMNS, ROWS, Picture, Pixels, taps_along

TAPS = (7, 9, 13, 17, 21)
_PARTS = 256


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Blur uint8 RGB [T, H, W, 3], its borders mirrored without repeating them; level 1..5. Draws nothing."""
    taps = _taps(TAPS[level - 1])
    # Every sum is a whole number below 2**24, which float32 holds.
    sums = taps_along(taps_along(frames.astype(np.float32), taps, COLUMNS), taps, ROWS)
    return np.floor(sums / _PARTS**2 + np.float32(0.5)).astype(np.uint8)


def _taps(count: int) -> Pixels:
    """Whole numbers that sum to 256: what rounding leaves goes to the next tap, the rest to the middle."""
    places = np.arange(count) - (count - 1) / 2
    wanted = np.exp(-0.5 * (places / (count / 6)) ** 2)
    wanted *= _PARTS / wanted.sum()
    taps, left = np.zeros(count, np.float32), 0.0
    for place in range(count // 2):
        due = wanted[place] + left
        taps[place] = taps[-1 - place] = np.rint(due)
        left = due - taps[place]
    taps[count // 2] = _PARTS - taps.sum()
    return taps
