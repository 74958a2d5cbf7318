"""The grain of a map. No torch here: whoever only serves a release reads it too."""

from typing import Literal

CELL_PX: Literal[8] = 8
"""side of a cell, pixels of the picture; as large as a block of JPEG"""
