"""A small batch inside the artifact, with the scores it must get: asked before a release scores."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from detector.scored import OUTPUTS, Scored


def write_probe(path: Path, crops: NDArray[np.uint8], pooling: NDArray[np.float32], expected: Scored) -> None:
    """Keep a batch with what the exported graph says of it; shapes as in Session.score."""
    arrays = {"crops": crops, "pooling": pooling} | {name: getattr(expected, name) for name in OUTPUTS}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def read_probe(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.float32], Scored]:
    """The batch's crops and pooling, and the scores expected of it."""
    arrays = load_file(path)
    return arrays["crops"], arrays["pooling"], Scored(**{name: arrays[name] for name in OUTPUTS})
