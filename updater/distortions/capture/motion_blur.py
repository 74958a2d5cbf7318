"""A mean along a straight line, as of a camera that moves while it exposes."""

import numpy as np

from updater.filters import Picture, Pixels, correlate, to_picture

LENGTHS_PX = (5, 7, 11, 15, 21)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Smear uint8 RGB [T, H, W, 3]; level 1..5. Draws the direction of all frames."""
    kernel = _line(LENGTHS_PX[level - 1], rng.uniform(0, np.pi))
    return to_picture(correlate(frames.astype(np.float32), kernel))


def _line(length_px: int, angle: float) -> Pixels:
    """A line through the middle, float32 [length_px, length_px] of sum 1, its points shared by near taps."""
    reach = length_px // 2
    steps = np.linspace(-reach, reach, 4 * length_px + 1)
    rows, columns = reach + steps * np.sin(angle), reach + steps * np.cos(angle)
    kernel = np.zeros((length_px, length_px), np.float32)
    for down in (0, 1):
        for across in (0, 1):
            row, column = np.floor(rows).astype(int) + down, np.floor(columns).astype(int) + across
            share = (1 - np.abs(rows - row)) * (1 - np.abs(columns - column))
            inside = (row < length_px) & (column < length_px)
            np.add.at(kernel, (row[inside], column[inside]), share[inside])
    kernel /= kernel.sum()
    return kernel
