from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.release.artifact import Artifact
from detector.release.contract import Contract, MediaInput, PoolingInput
from detector.release.inputs import request_for
from ingest.records import Decoded, PicturePlan, Region


def decoded(crops: int, regions: tuple[tuple[int, ...], ...] = (), size: int = 8) -> Decoded:
    return Decoded(
        kind="image",
        format="PNG",
        width=100,
        height=80,
        frames=1,
        crops=np.full((crops, size, size, 3), crops, np.uint8),
        regions=tuple(Region("face", (0, 0, 8, 8), 0, None, rows) for rows in regions),
    )


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=6))
def test_every_row_is_the_mean_of_its_own_crops(
    untrained_artifact: Artifact, shape: list[tuple[int, int]]
) -> None:
    items = [decoded(crops, tuple((i % crops,) for i in range(regions))) for crops, regions in shape]
    request = request_for(items, untrained_artifact.manifest.contract)
    crops, pooling = request["crops"], request["pooling"]
    assert pooling.shape == (
        len(items) + sum(regions for _, regions in shape),
        sum(crops for crops, _ in shape),
    )
    np.testing.assert_allclose(pooling.sum(1), 1, rtol=1e-6)
    # Every crop is filled with its own item's count of crops, so a mean shows whose crops it is of.
    means = pooling @ crops.reshape(len(crops), -1).mean(1)
    owners = [crops for crops, _ in shape] + [crops for crops, regions in shape for _ in range(regions)]
    np.testing.assert_allclose(means, owners, rtol=1e-5)


@pytest.mark.parametrize("items", [[], [decoded(0)], [decoded(1), decoded(0)]])
def test_an_item_without_crops_is_refused(untrained_artifact: Artifact, items: list[Decoded]) -> None:
    with pytest.raises(ValueError, match="crop"):
        request_for(items, untrained_artifact.manifest.contract)


def with_pictures(contract: Contract, scene: MediaInput) -> Contract:
    pooling = PoolingInput(name="scenes", dtype="float32", shape=("rows", scene.axis), pools=scene.name)
    return Contract(inputs=(*contract.inputs, scene, pooling), outputs=contract.outputs)


def test_a_picture_is_brought_to_the_declared_range_mean_and_deviation(untrained_artifact: Artifact) -> None:
    scene = MediaInput(
        name="scene",
        dtype="float32",
        shape=("pictures", 1, 2, 3),
        view=PicturePlan(width_px=2, height_px=1),
        range=(-1, 1),
        mean=(0.1, 0.2, 0.3),
        deviation=(0.5, 1, 2),
    )
    contract = with_pictures(untrained_artifact.manifest.contract, scene)
    pixels = np.array([[[[0, 51, 255], [255, 255, 0]]]], np.uint8)
    request = request_for([replace(decoded(1), pictures={"scene": pixels})], contract)
    expected = [[(-1 - 0.1) / 0.5, -0.6 - 0.2, 0.7 / 2], [0.9 / 0.5, 0.8, -1.3 / 2]]
    assert request["scene"].dtype == np.float32
    np.testing.assert_allclose(request["scene"], [[expected]], rtol=1e-6)


def test_a_region_is_shown_by_the_picture_of_its_frame(untrained_artifact: Artifact) -> None:
    scene = MediaInput(
        name="scene",
        dtype="uint8",
        shape=("pictures", 1, 1, 3),
        view=PicturePlan(width_px=1, height_px=1),
    )
    contract = with_pictures(untrained_artifact.manifest.contract, scene)
    whole = tuple(Region("frame", (0, 0, 8, 8), frame, 0.1, (i,)) for i, frame in enumerate((3, 7)))
    video = replace(
        decoded(2),
        regions=(*whole, Region("face", (0, 0, 4, 4), 7, 0.1, (1,))),
        frames=2,
        frame_numbers=(3, 7),
        pictures={"scene": np.array([[[[3] * 3]], [[[7] * 3]]], np.uint8)},
    )
    still = replace(decoded(1), pictures={"scene": np.full((1, 1, 1, 3), 9, np.uint8)})
    request = request_for([still, video], contract)
    shown = request["scenes"] @ request["scene"][:, 0, 0, 0]
    np.testing.assert_allclose(shown, [9, (3 + 7) / 2, 3, 7, 7])
