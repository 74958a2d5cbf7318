"""Faces are found by several threads at once: each has a detector of its own."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ingest.sandbox.faces import find_faces


@pytest.mark.slow
def test_threads_find_at_once_what_one_finds():
    # A detector that threads share takes the process with it: a picture of any kind does.
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (90 + 8 * number, 100, 3), dtype=np.uint8) for number in range(12)]
    alone = [find_faces(picture, 3) for picture in pictures]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            assert list(threads.map(lambda picture: find_faces(picture, 3), pictures)) == alone
