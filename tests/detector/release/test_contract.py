from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from detector.release.artifact import Artifact
from detector.release.contract import Contract, MediaInput, PoolingInput, request_for
from detector.release.graph_contract import TensorSpec, conform
from detector.release.tensors import TensorsError
from ingest.records import CropPlan, Decoded, MediaPlan, PicturePlan, Region

PICTURE = PicturePlan(width_px=32, height_px=16)
SCENE = MediaInput(name="scene", dtype="uint8", shape=("pictures", 16, 32, 3), view=PICTURE)
SCENES = PoolingInput(name="scenes", dtype="float32", shape=("rows", "pictures"), pools="scene")


@pytest.fixture
def contract(untrained_artifact: Artifact) -> Contract:
    return untrained_artifact.manifest.contract


def changed(contract: Contract, **parts: Any) -> Contract:
    return Contract.model_validate({"inputs": contract.inputs, "outputs": contract.outputs} | parts)


def test_every_view_of_media_is_in_the_plan_of_decoding(contract: Contract) -> None:
    both = changed(contract, inputs=(*contract.inputs, SCENE, SCENES))
    assert both.media_plan == MediaPlan(crops=contract.crop_plan, pictures={"scene": PICTURE})
    assert Contract.model_validate_json(both.model_dump_json()) == both


def test_a_contract_that_cannot_be_kept_is_refused(contract: Contract) -> None:
    crops, pooling = contract.inputs
    other = TensorSpec(name="other", dtype="float32", shape=("items",))
    broken: list[dict[str, Any]] = [
        {"inputs": (crops,)},
        {"inputs": (pooling,)},
        {"inputs": (SCENE, SCENES)},
        {"inputs": (crops, pooling, SCENE)},
        {"inputs": (crops, pooling, SCENE, SCENES.model_copy(update={"pools": "crops"}))},
        {"inputs": (crops, pooling, SCENE, SCENES.model_copy(update={"dtype": "int64"}))},
        {"inputs": (crops, pooling, SCENE, SCENES, SCENES.model_copy(update={"name": "again"}))},
        {"inputs": (crops, pooling, SCENE.model_copy(update={"name": "pooling"}), SCENES)},
        {
            "inputs": (
                crops,
                pooling,
                SCENE.model_copy(update={"shape": ("crops", 16, 32, 3)}),
                SCENES.model_copy(update={"shape": ("rows", "crops")}),
            )
        },
        {"outputs": contract.outputs[1:]},
        {"outputs": (*contract.outputs, other)},
        {"outputs": (*contract.outputs, contract.outputs[0])},
    ]
    assert changed(contract) == contract
    for parts in broken:
        with pytest.raises(ValidationError):
            changed(contract, **parts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": ("pictures", 32, 16, 3)},
        {"shape": (1, 16, 32, 3)},
        {"shape": ("Pictures", 16, 32, 3)},
        {"colour": "BGR"},
        {"range": (0, 1)},
        {"mean": (1, 1, 1)},
        {"dtype": "float32", "deviation": (1, 0, 1)},
        {"dtype": "int64"},
        {"view": CropPlan(crop_px=16)},
        {"layout": "NCHW"},
    ],
)
def test_a_view_that_media_cannot_become_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MediaInput.model_validate(SCENE.model_dump() | wrong)


SPECS = (
    TensorSpec(name="a", dtype="float32", shape=("rows", 2)),
    TensorSpec(name="b", dtype="int64", shape=("rows", "n")),
)


def arrays(rows: int = 3, n: int = 4) -> dict[str, np.ndarray]:
    return {"a": np.zeros((rows, 2), np.float32), "b": np.zeros((rows, n), np.int64)}


def test_open_axes_have_one_size_each() -> None:
    assert conform(arrays(), SPECS) == {"rows": 3, "n": 4}
    assert conform(arrays(n=0), SPECS, {"rows": 3}) == {"rows": 3, "n": 0}
    with pytest.raises(TensorsError, match="with rows 2"):
        conform(arrays(), SPECS, {"rows": 2})
    with pytest.raises(TensorsError, match=r"b is int64 \(5, 4\), this model has int64 \(rows, n\)"):
        conform({**arrays(), "b": arrays(rows=5)["b"]}, SPECS)


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
