"""What a setting of training chooses from: how the learning rate goes on, and what is done to crops.

A schedule gives shares of the peak, by a share of the steps.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

Schedule = Literal["one-cycle", "cosine", "tenths"]
Augment = Literal["none", "flip", "flip-shift"]
"""of each crop, while the backbone is trained"""

_WARM_UP = 0.2
# Of 170 epochs WA and BiC fall at 60, 100 and 140; of the first task's 200 at 60, 120 and 170.
_FALLS = (0.35, 0.6, 0.85)


def one_cycle(done: float) -> float:
    """Return the share of the peak at this share of the steps: up in a fifth, then down as a cosine."""
    if done < _WARM_UP:
        return 0.05 + 0.95 * done / _WARM_UP
    return cosine((done - _WARM_UP) / (1 - _WARM_UP))


def cosine(done: float) -> float:
    """Return the share of the peak: down as half a cosine, from 1 to 0 (FOSTER's published schedule)."""
    return 0.5 * (1 + math.cos(math.pi * done))


def tenths(done: float) -> float:
    """Return the share of the peak: a tenth of the one before after 35, 60 and 85 % of the steps."""
    return float(0.1 ** sum(done >= fall for fall in _FALLS))


SCHEDULES: Mapping[Schedule, Callable[[float], float]] = {
    "one-cycle": one_cycle,
    "cosine": cosine,
    "tenths": tenths,
}
