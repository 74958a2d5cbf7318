"""PNGs of what the memory holds, encoded here from decoded crops: no byte of a producer reaches a browser."""

import io
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Path, Response
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import uniform_filter
from sqlalchemy import select

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.client.pictures import draw_map
from deploy.server.services import Opened, Services
from detector.records import Verdict
from memory.rows import exemplars_of
from memory.schema import exemplars

router = APIRouter(route_class=GuardedRoute)

Look = Literal["pixels", "residual", "map"]
_RESIDUAL_GAIN = 8.0
"""A trace of one level of 255 is hardly seen; of eight, it is."""
_WHOLE_PX = 512
_SHOWN_S = 300
"""Seconds that a browser keeps a picture: what is purged is gone from it as well."""

Id = Annotated[str, Path(max_length=300, description="an exemplar's id")]


@router.get("/page/pictures/{exemplar}/{look}.png", response_class=Response, openapi_extra=least("viewer"))
def picture(services: Opened, exemplar: Id, look: Look) -> Response:
    """An exemplar's first crop in native pixels, its residual, or where it is forged, as a PNG.

    404 where it is unknown or its crops were purged.
    """
    return png(drawn(services, exemplar, look))


def drawn(services: Services, exemplar: str, look: Look) -> Image.Image:
    """Draw what is stored of an exemplar. A map is drawn over its picture, or over grey where none is kept.

    Raises UnknownExemplarError, CropsMissingError, CropsUnavailableError.
    """
    with services.memory.read() as connection:
        (item,) = exemplars_of(connection, [exemplar])
        said = connection.scalar(select(exemplars.c.verdict).where(exemplars.c.id == exemplar))
    views = services.crops.load_views(str(item.crops_digest))
    crop = views.crops[0]
    if look == "residual":
        return Image.fromarray(residual(crop))
    verdict = Verdict.model_validate_json(said) if look == "map" and said else None
    if verdict is None or verdict.map is None:
        return Image.fromarray(crop)
    return draw_map(_whole(views.picture, verdict), verdict.width, verdict.map)


def _whole(picture: NDArray[np.uint8] | None, verdict: Verdict) -> NDArray[np.uint8]:
    """All of an item as it looks, sides of at most 512 px: what is stored is squeezed into a square."""
    scale = min(1.0, _WHOLE_PX / max(verdict.width, verdict.height))
    size = (max(1, round(verdict.width * scale)), max(1, round(verdict.height * scale)))
    if picture is None:
        return np.full((size[1], size[0], 3), 128, np.uint8)
    resized: NDArray[np.uint8] = np.asarray(Image.fromarray(picture).resize(size))
    return resized


def residual(crop: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What of a crop, uint8 RGB [H, W, 3], its neighbouring pixels do not foretell, around mid-grey."""
    levels = crop.astype(np.float32)
    trace = levels - uniform_filter(levels, (3, 3, 1), mode="nearest")
    shown: NDArray[np.uint8] = np.clip(128 + _RESIDUAL_GAIN * trace, 0, 255).astype(np.uint8)
    return shown


def png(image: Image.Image) -> Response:
    """A picture as an answer."""
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return Response(
        out.getvalue(), media_type="image/png", headers={"cache-control": f"private, max-age={_SHOWN_S}"}
    )
