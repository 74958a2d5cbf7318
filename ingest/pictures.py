"""Whole pictures at one size, for models that look at the scene. Forensic traces do not survive it. Pure."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ingest.records import Interpolation, PicturePlan

_RESAMPLING: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def resized(picture: NDArray[np.uint8], plan: PicturePlan) -> NDArray[np.uint8]:
    """Resize uint8 RGB (height, width, 3) to (height_px, width_px, 3); what is made smaller is averaged."""
    size = (plan.width_px, plan.height_px)
    return np.asarray(Image.fromarray(picture).resize(size, _RESAMPLING[plan.interpolation]))
