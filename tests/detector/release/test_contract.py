from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from detector.release.artifact import Artifact
from detector.release.contract import Contract, MediaInput, PoolingInput
from detector.release.graph_contract import TensorSpec, conform
from detector.release.tensors import TensorsError
from ingest.records import CropPlan, MediaPlan, PicturePlan

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
