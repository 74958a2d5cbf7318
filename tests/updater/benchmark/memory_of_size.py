"""`python memory_of_size.py [CACHE]`: how many bytes an update over 8,000 images takes more than over 500.

Without CACHE, crops and what is computed of them are held in memory. What is taken whatever the number (how
many items are looked at at once) is made small, so that a few images show what grows.
"""

import sys
from pathlib import Path

import torch

from detector.release.architecture import Architecture
from updater.benchmark import size
from updater.benchmark.continual import scoring
from updater.benchmark.continual.setup import Setup
from updater.data import stored_rows
from updater.training import loop, pools
from updater.training.step import Options


def main() -> None:
    cache = Path(sys.argv[1]) if sys.argv[1:] else None
    torch.set_num_threads(1)
    stored_rows.MAX_HELD_BYTES = 2**18 if cache else 2**40
    loop._WHITENED_ON = scoring.MAX_FITTED_ON = pools._ITEMS_AT_ONCE = size._PIECE_IMAGES = 128
    small = Architecture(crop_px=size.CROP_PX, width=8)
    setup = Setup(architecture=small, options=Options(exposure="none"))
    # What the first run alone leaves behind does not count.
    peaks = [
        size.measure(n, setup, cache, 0, lambda stage, at, of: None)[-1].peak_bytes for n in (500, 500, 8000)
    ]
    print(peaks[2] - peaks[1])


if __name__ == "__main__":
    main()
