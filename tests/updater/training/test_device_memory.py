"""As many rows at once as a device's memory holds; where it holds none, one line says so."""

import numpy as np
import pytest
import torch

from updater.training.crop_rows import DeviceMemoryError, fitting

CROPS = np.random.default_rng(0).integers(0, 256, (700, 4, 4, 3), np.uint8)


def means(most):
    """A function whose device holds so many rows, and how many it was asked for each time."""
    asked = []

    def function(images):
        asked.append(len(images))
        if len(images) > most:
            raise torch.OutOfMemoryError("full")
        return images.mean((1, 2, 3))[:, None]

    return function, asked


@pytest.mark.parametrize("most", [1, 50, 200, 10_000])
def test_rows_at_once_grow_until_the_memory_is_full_and_every_row_comes_once(most):
    function, asked = means(most)
    seen = []
    parts = fitting(function, CROPS, torch.device("cpu"), lambda done, total: seen.append((done, total)))
    found = torch.cat(list(parts))
    assert torch.allclose(found[:, 0], torch.from_numpy(CROPS).float().mean((1, 2, 3)))
    assert seen[-1] == (700, 700)
    full = [at for at, rows in enumerate(asked) if rows > most]
    # Once it was full it is not filled again, and then at least half of what fits is used.
    held = asked[full[-1] + 1 :] if full else asked
    assert max(held) <= most
    assert held[0] * 2 > min(most, 64)
    assert len(full) <= 7


def test_a_device_that_holds_not_one_is_told_of_in_one_line():
    with pytest.raises(DeviceMemoryError, match="too little memory for one crop") as caught:
        list(fitting(means(0)[0], CROPS, torch.device("cpu"), lambda done, total: None))
    assert "\n" not in str(caught.value)
