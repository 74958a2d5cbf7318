"""Frames through one of Pillow's codecs, each by itself."""

import io
from typing import Any

import numpy as np
from PIL import Image

from updater.filters import Picture


def through(frames: Picture, form: str, **options: Any) -> Picture:
    """Code and decode each frame of uint8 RGB [T, H, W, 3] as one of Pillow's formats."""
    decoded = np.empty_like(frames)
    for number, frame in enumerate(frames):
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, form, **options)
        decoded[number] = np.asarray(Image.open(buffer).convert("RGB"))
    return decoded
