"""Pictures at one size for models of whole pictures: resized, which no trace survives. Pure."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ingest.records import Interpolation, PicturePlan

_RESAMPLING: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def shown(picture: NDArray[np.uint8], plan: PicturePlan) -> NDArray[np.uint8]:
    """Show uint8 RGB (height, width, 3) as (height_px, width_px, 3). What is made smaller is averaged."""
    size = (plan.width_px, plan.height_px)
    return np.asarray(Image.fromarray(picture).resize(size, _RESAMPLING[plan.interpolation]))
