"""Some vectors, each with the place that it has in an index."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Vectors:
    """places is int64 (n,); matrix is (n, F), float32 or rounded to float16."""

    places: NDArray[np.int64]
    matrix: NDArray[Any]
