"""What may be done to crops at random while the backbone is trained."""

from typing import Literal

Augment = Literal["none", "flip", "flip-shift"]


def shift_px(augment: Augment, crop_px: int) -> int:
    """Return the most that crops of that side are moved by: an eighth of it, where they are moved at all."""
    return crop_px // 8 if augment == "flip-shift" else 0
