"""Folders of labelled files, as `forgewatch import` takes them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(number: int) -> bytes:
    """Return a PNG of noise, another one for each number."""
    rng = np.random.default_rng(number)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (80, 96, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files by their paths below a folder, and return that."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
