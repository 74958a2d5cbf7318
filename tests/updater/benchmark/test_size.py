"""What an update takes of memory does not grow with the pictures that it is over."""

import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = Path(__file__).with_name("memory_of_size.py")
_MIB = 2**20


def grown(*cache):
    done = subprocess.run(
        [sys.executable, _SCRIPT, *cache],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return int(done.stdout)


def test_an_update_over_sixteen_times_the_images_takes_little_more_memory_unless_they_are_held(tmp_path):
    # 7,500 images more: their crops, features and rows are 40 MiB, in memory several times over.
    # What else the machine does can only add to it.
    tries = (grown(tmp_path / name) for name in ("crops", "again"))
    assert any(one < 30 * _MIB for one in tries)
    assert grown() > 50 * _MIB
