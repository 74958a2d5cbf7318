"""What the first look leaves for a scan of a video: where to look where no face was found. Pure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detector.looks.judged_item import Clip
from detector.looks.scan_places import most_restless_corner
from detector.release.manifest import Manifest
from ingest.records import Decoded, Region

Apart = list[tuple[int, Region]]
"""Single crops that are judged beside the items' regions: the item's place, and the crop as a region."""


def judged_apart(items: Sequence[Decoded], manifest: Manifest) -> Apart:
    """Return each crop of the frames of the videos without a face, where the release has a scanner."""
    if manifest.scanner is None:
        return []
    return [
        (place, Region("frame", region.box, region.frame, region.time_s, (row,)))
        for place, item in enumerate(items)
        if item.kind == "video" and all(region.kind != "face" for region in item.regions)
        for region in item.regions
        for row in region.crops
    ]


def clips(
    items: Sequence[Decoded], apart: Apart, features: NDArray[np.float32], manifest: Manifest
) -> list[Clip | None]:
    """Return what is known of each item that is a video; None for others, and without a scanner.

    features: float32 (M, F), of the request's rows, the last of which are those of apart.
    """
    if manifest.scanner is None:
        return [None] * len(items)
    of_item = np.array([place for place, _ in apart], np.int64)
    single = features[len(features) - len(apart) :]
    plan = manifest.contract.crop_plan
    return [
        Clip(item.length, most_restless_corner(item, single[of_item == place], plan))
        if item.kind == "video"
        else None
        for place, item in enumerate(items)
    ]
