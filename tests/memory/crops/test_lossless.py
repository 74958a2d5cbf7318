import numpy as np
import pytest

from memory.crops.lossless import packed, unpacked


@pytest.mark.parametrize("shape", [(1, 16, 16, 3), (24, 64, 64, 3), (3, 33, 33, 3)])
def test_frames_come_back_to_the_bit_and_the_same_ones_give_the_same_bytes(shape: tuple[int, ...]) -> None:
    frames = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    value = packed(frames)
    np.testing.assert_array_equal(unpacked(value), frames)
    assert packed(frames) == value


def test_frames_that_follow_on_one_another_take_a_fraction() -> None:
    scene = np.random.default_rng(0).integers(0, 256, (80, 200, 3), np.uint8)
    frames = np.stack([scene[:64, k : k + 64] for k in range(32)])
    assert len(packed(frames)) < frames.nbytes / 8


@pytest.mark.parametrize("value", [b"", b"no frames at all", packed(np.zeros((2, 16, 16, 3), np.uint8))[:60]])
def test_what_holds_no_frames_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="holds no frames"):
        unpacked(value)
