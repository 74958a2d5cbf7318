import numpy as np
import pytest
import scipy.fft
import scipy.signal
import torch
from numpy.typing import NDArray

from detector.features.spectrum import Spectrum

SIDE = 64
RINGS, STAND_OUT, PEAKS = slice(0, 16), slice(16, 28), slice(28, 37)


def measured(luma: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = Spectrum(SIDE)(torch.from_numpy(luma).float()[None])[0].numpy()
    return found


def grain(seed: int) -> NDArray[np.float64]:
    made: NDArray[np.float64] = np.random.default_rng(seed).normal(120, 8, (SIDE, SIDE))
    return made


def test_rings_and_their_highest_are_those_of_the_fourier_transform() -> None:
    luma = grain(0)
    window = np.outer(scipy.signal.windows.hann(SIDE, sym=False), scipy.signal.windows.hann(SIDE, sym=False))
    power = np.log(np.abs(scipy.fft.rfft2((luma - luma.mean()) * window)) ** 2 + 1)
    down, across = 2 * scipy.fft.fftfreq(SIDE)[:, None], 2 * scipy.fft.rfftfreq(SIDE)
    ring = np.floor(16 * np.hypot(down, across)).astype(int)
    means = np.array([power[ring == k].mean() for k in range(16)])
    highest = np.array([np.sort(power[ring == k])[-3:].mean() for k in range(4, 16)])
    found = measured(luma)
    assert np.allclose(found[RINGS], means, atol=1e-3)
    assert np.allclose(found[STAND_OUT], highest - means[4:], atol=1e-3)


@pytest.mark.parametrize(("axis", "kind"), [(0, "row"), (1, "column")])
def test_what_every_second_line_repeats_stands_out_along_that_axis_alone(axis: int, kind: str) -> None:
    luma = grain(1)
    luma[(slice(None),) * axis + (slice(None, None, 2),)] += 6
    more = (measured(luma) - measured(grain(1)))[PEAKS].reshape(3, 3)[0]
    assert more[axis] > 3, kind
    assert np.abs(np.delete(more, axis)).max() < 0.5
