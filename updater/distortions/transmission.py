"""Perturbations by losses in transmission, six of our own for ForgeryNet. A level 1..5 indexes a table here.

Each takes and gives uint8 RGB [T, H, W, 3] and draws anew for each frame.
"""

import numpy as np
from numpy.typing import NDArray

from updater.distortions.distortion import Distortion
from updater.filters import Picture

BLOCK_LOSS_SHARES = (0.002, 0.005, 0.01, 0.02, 0.04)
LOST_SIDE_PX = 8
GREY = 128
BLOCK_SHIFT_SHARES = (0.01, 0.02, 0.04, 0.08, 0.15)
SHIFTED_SIDE_PX = 16
SHIFT_REACH_PX = 32
LINE_LOSS_SHARES = (0.01, 0.02, 0.04, 0.08, 0.15)
JITTER_REACHES_PX = (1, 2, 3, 5, 8)
IMPULSE_SHARES = (0.002, 0.005, 0.01, 0.02, 0.05)
DROPOUT_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)


def block_loss(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Turn blocks of the 8 px grid grey, as if they never came. Draws each frame's blocks."""
    height, width = frames.shape[1:3]
    rows, columns = -(-height // LOST_SIDE_PX), -(-width // LOST_SIDE_PX)
    kept = frames.copy()
    for frame in kept:
        lost = rng.random((rows, columns)) < BLOCK_LOSS_SHARES[level - 1]
        frame[lost.repeat(LOST_SIDE_PX, 0).repeat(LOST_SIDE_PX, 1)[:height, :width]] = GREY
    return kept


def block_shift(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Replace blocks of the 16 px grid by pixels within 32 px. Draws blocks and their sources."""
    height, width = frames.shape[1:3]
    side = SHIFTED_SIDE_PX
    rows, columns = height // side, width // side
    shifted = frames.copy()
    for frame, source in zip(shifted, frames, strict=True):
        for row, column in np.argwhere(rng.random((rows, columns)) < BLOCK_SHIFT_SHARES[level - 1]) * side:
            down, across = rng.integers(-SHIFT_REACH_PX, SHIFT_REACH_PX + 1, 2)
            top = int(np.clip(row + down, 0, height - side))
            left = int(np.clip(column + across, 0, width - side))
            frame[row : row + side, column : column + side] = source[top : top + side, left : left + side]
    return shifted


def line_loss(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Show the row above in the place of rows that never came. Draws the rows; the first is never lost."""
    height = frames.shape[1]
    repeated = np.empty_like(frames)
    for number, frame in enumerate(frames):
        came = np.where(rng.random(height) < LINE_LOSS_SHARES[level - 1], 0, np.arange(height))
        repeated[number] = frame[np.maximum.accumulate(came)]
    return repeated


def row_jitter(rng: np.random.Generator, stack: Picture, level: int) -> Picture:
    """Move each row sideways by whole pixels of its own; edges repeat. Draws each frame's rows.

    Maps, uint8 [T, H, W], move as the same draw moves frames.
    """
    height, width = stack.shape[1:3]
    rows: NDArray[np.int64] = np.arange(height)[:, None]
    moved = np.empty_like(stack)
    for number, frame in enumerate(stack):
        shifts = rng.integers(-JITTER_REACHES_PX[level - 1], JITTER_REACHES_PX[level - 1] + 1, (height, 1))
        moved[number] = frame[rows, np.clip(np.arange(width) + shifts, 0, width - 1)]
    return moved


def impulses(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Turn single pixels black or white. Draws each frame's pixels."""
    struck = frames.copy()
    for frame in struck:
        chance = rng.random(frame.shape[:2], dtype=np.float32)
        frame[chance < IMPULSE_SHARES[level - 1]] = 255
        frame[chance < IMPULSE_SHARES[level - 1] / 2] = 0
    return struck


def pixel_dropout(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Turn single pixels black. Draws each frame's pixels."""
    kept = frames.copy()
    for frame in kept:
        frame[rng.random(frame.shape[:2], dtype=np.float32) < DROPOUT_SHARES[level - 1]] = 0
    return kept


TRANSMISSION = {
    "block_loss": Distortion(block_loss, each_frame=True),
    "block_shift": Distortion(block_shift, each_frame=True),
    "line_loss": Distortion(line_loss, each_frame=True),
    "row_jitter": Distortion(row_jitter, each_frame=True, move=row_jitter),
    "impulses": Distortion(impulses, each_frame=True),
    "pixel_dropout": Distortion(pixel_dropout, each_frame=True),
}
