"""What may be done to crops at random in training."""

from dataclasses import dataclass
from typing import Literal

Augment = Literal["none", "flip", "flip-shift"]
"""of each crop, while the backbone is trained"""

Strength = Literal["sing", "rand", "mix2", "mix3", "mix4"]
"""Of DeeperForensics' seven distortions, as it names its variants. sing: one at level 5; rand: one at any
level; mix2: two different ones at any levels, one after the other."""


@dataclass(frozen=True)
class Distorted:
    """How many distorted copies of the items there are beside them, and of what strength."""

    share: float = 0.0
    """copies an item; 0 for none, and above 1 some items have several"""
    strength: Strength = "rand"


NO_COPIES = Distorted()


def shift_px(augment: Augment, crop_px: int) -> int:
    """Return the most that crops of that side are moved by: an eighth of it, where they are moved at all."""
    return crop_px // 8 if augment == "flip-shift" else 0
