"""One message of forgewatch.unknowns: a verdict, and its item for the memory.

Lossless, since forensic traces die in re-compression; safetensors, since nothing in it executes.
"""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from detector.records import Verdict
from ingest.picture_hash import PICTURE_BYTES

# Of one message; crops beyond it are left out. With headers it fits a broker's default of 1 MiB.
MAX_MESSAGE_BYTES = 900_000


class UnknownMessageError(ValueError):
    """The bytes are no message of forgewatch.unknowns. Fatal: the same bytes stay wrong."""


@dataclass(frozen=True)
class UnknownMessage:
    """crops uint8 (n, S, S, 3), the first n of the item's; features float32 (F,) raw forensic features
    and embedding float32 (D,), of all its crops; left_out counts the crops that did not fit.

    feature_version is that of the release's manifest. It is None for a release without forensic
    features, and in messages of before the field, which may be of any version. picture is the first frame
    whole, uint8 (H, W, 3), as the release saw it; None where it sees only crops. picture_hashes are those of
    `ingest.records.Decoded`; none in messages of before the field.
    """

    verdict: Verdict
    crops: NDArray[np.uint8]
    features: NDArray[np.float32]
    embedding: NDArray[np.float32]
    left_out: int
    feature_version: str | None
    picture: NDArray[np.uint8] | None = None
    picture_hashes: bytes = b""


def encode(
    verdict: Verdict,
    crops: NDArray[np.uint8],
    features: NDArray[np.float32],
    embedding: NDArray[np.float32],
    feature_version: str | None,
    limit_bytes: int = MAX_MESSAGE_BYTES,
    picture: NDArray[np.uint8] | None = None,
    picture_hashes: bytes = b"",
) -> bytes:
    """A message of at most limit_bytes, with as many of the leading crops as fit.

    A picture, uint8 (H, W, 3), comes first: it takes the place of some crops, or stays out where it leaves no
    room for one.

    crops is uint8 (n, S, S, 3), features float32 (F,) of that feature version, embedding float32 (D,).
    Raises ValueError when not even a message without crops fits.
    """
    views = {} if picture is None else {"picture": picture}
    facts = {"verdict": verdict.model_dump_json(), "picture_hashes": picture_hashes.hex()}
    if feature_version is not None:
        facts["feature_version"] = feature_version

    def message(kept: int) -> bytes:
        arrays = {"crops": crops[:kept], "features": features, "embedding": embedding} | views
        metadata = facts | {"left_out": str(len(crops) - kept)}
        return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)

    room = limit_bytes - len(message(0)) - _SLACK_BYTES
    if views and room < crops[0].nbytes:
        views = {}
        room = limit_bytes - len(message(0)) - _SLACK_BYTES
    if room < 0:
        raise ValueError(f"a message without crops takes {limit_bytes - room} bytes, allowed {limit_bytes}")
    return message(min(len(crops), room // crops[0].nbytes))


# What the header may grow by when the crops' count and offsets take more digits; it is padded to 8.
_SLACK_BYTES = 64


def decode(data: bytes) -> UnknownMessage:
    """The message in a record's value. Raises UnknownMessageError."""
    try:
        arrays = load(data)
        metadata = _metadata(data)
        verdict = Verdict.model_validate_json(metadata["verdict"])
        left_out = int(metadata["left_out"])
        crops, features, embedding = arrays["crops"], arrays["features"], arrays["embedding"]
        picture = arrays.get("picture")
        picture_hashes = bytes.fromhex(metadata.get("picture_hashes", ""))
    except (SafetensorError, ValidationError, KeyError, ValueError) as error:
        raise UnknownMessageError(f"not a message of unknowns: {error}") from error
    if crops.dtype != np.uint8 or crops.ndim != 4 or crops.shape[1:] != (crops.shape[1],) * 2 + (3,):
        raise UnknownMessageError(f"crops is {crops.dtype} {crops.shape}, not uint8 (n, S, S, 3)")
    if len(crops) and not crops.size:  # any number of them fits into a message
        raise UnknownMessageError(f"crops of shape {crops.shape} have no pixel")
    if not features.dtype == embedding.dtype == np.float32 or not features.ndim == embedding.ndim == 1:
        raise UnknownMessageError("features and embedding must be float32 rows")
    if picture is not None and not (picture.dtype == np.uint8 and picture.shape[2:] == (3,) and picture.size):
        raise UnknownMessageError(f"picture is {picture.dtype} {picture.shape}, not uint8 (H, W, 3)")
    if len(picture_hashes) % PICTURE_BYTES:
        raise UnknownMessageError(f"{len(picture_hashes)} bytes of hashes are not {PICTURE_BYTES} a picture")
    version = metadata.get("feature_version")
    return UnknownMessage(verdict, crops, features, embedding, left_out, version, picture, picture_hashes)


def _metadata(data: bytes) -> dict[str, str]:
    # safetensors.numpy.load gives the arrays alone; the header is a length and JSON.
    length = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return metadata
