"""How long a part of a run took, over all tries where it was interrupted."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingest.durable import write_durably
from updater.training.processes import is_first


@contextmanager
def timed(file: Path) -> Iterator[None]:
    """Add the seconds that the block takes to those in the file, however the block ends. Raises OSError."""
    before, began = seconds_in(file), time.perf_counter()
    try:
        yield
    finally:
        if is_first():
            write_durably(file, json.dumps({"training": before + time.perf_counter() - began}).encode())


def seconds_in(file: Path) -> float:
    """Return the seconds that the file has, 0 where there is none."""
    return float(json.loads(file.read_bytes())["training"]) if file.is_file() else 0.0
