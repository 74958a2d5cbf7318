"""What an update takes of memory does not grow with the pictures that it is over."""

import os
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).with_name("memory_of_size.py")
_MIB = 2**20


@pytest.fixture
def grown(fork, tmp_path):
    """By how many bytes the peak of a process grows with sixteen times the images."""

    def grown(*cache):
        said = tmp_path / "said"
        assert fork(_SCRIPT, os.environ, str(said), *map(str, cache)).wait(300) == 0
        return int(said.read_text())

    return grown


def test_an_update_over_sixteen_times_the_images_takes_little_more_memory_unless_they_are_held(
    tmp_path, grown
):
    # 7,500 images more: their crops, features and rows are 40 MiB, in memory several times over.
    # What else the machine does can only add to it.
    tries = (grown(tmp_path / name) for name in ("crops", "again"))
    assert any(one < 30 * _MIB for one in tries)
    assert grown() > 50 * _MIB
