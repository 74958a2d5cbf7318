"""The interface of a distortion, and one step of a mix: a distortion's name at a level."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from updater.filters import Picture

LEVELS = (1, 2, 3, 4, 5)

Apply = Callable[[np.random.Generator, Picture, int], Picture]


class DistortionError(Exception):
    """A distortion or a level that is none, or media that cannot be distorted; its text is one line."""


@dataclass(frozen=True)
class Distortion:
    """One distortion of frames."""

    apply: Apply
    """(rng, uint8 RGB [T, H, W, 3], level) → the same shape; what it was given stays as it was"""
    each_frame: bool = False
    """whether it draws anew for each frame, in order; else one draw, which T has no part in, holds for all"""
    move: Apply | None = None
    """what it does to maps, uint8 [T, H, W], by the same draw; None where pixels stay in their places"""
    rate_factors: tuple[int, ...] = ()
    """of H.264 at levels 1…5, where it is nothing but that: a file's clip is then coded whole"""


@dataclass(frozen=True)
class Step:
    """A distortion at a level, as a line of a meta file names it: TYPE:LEVEL."""

    name: str
    level: int

    def __str__(self) -> str:
        return f"{self.name}:{self.level}"
