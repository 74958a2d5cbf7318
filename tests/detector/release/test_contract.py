from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from verdicts import make_decoded

from detector.release.contract import Contract, MediaInput, PoolingInput, request_for
from detector.release.tensors import (
    TensorsError,
    TensorSpec,
    beyond_tolerance,
    conform,
    decode,
    differences,
    encode,
)
from ingest.records import CropPlan, MediaPlan, PicturePlan, Region

PICTURE = PicturePlan(width_px=32, height_px=16)
SCENE = MediaInput(name="scene", dtype="uint8", shape=("pictures", 16, 32, 3), view=PICTURE)
SCENES = PoolingInput(name="scenes", dtype="float32", shape=("rows", "pictures"), pools="scene")


@pytest.fixture
def contract(untrained_artifact):
    return untrained_artifact.manifest.contract


def changed(contract, **parts):
    return Contract.model_validate({"inputs": contract.inputs, "outputs": contract.outputs} | parts)


def test_every_view_of_media_is_in_the_plan_of_decoding(contract):
    both = changed(contract, inputs=(*contract.inputs, SCENE, SCENES))
    assert both.media_plan == MediaPlan(crops=contract.crop_plan, pictures={"scene": PICTURE})
    assert Contract.model_validate_json(both.model_dump_json()) == both


def test_a_contract_that_cannot_be_kept_is_refused(contract):
    crops, pooling = contract.inputs
    other = TensorSpec(name="other", dtype="float32", shape=("items",))
    broken = [
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
def test_a_view_that_media_cannot_become_is_refused(wrong):
    with pytest.raises(ValidationError):
        MediaInput.model_validate(SCENE.model_dump() | wrong)


SPECS = (
    TensorSpec(name="a", dtype="float32", shape=("rows", 2)),
    TensorSpec(name="b", dtype="int64", shape=("rows", "n")),
)


def arrays(rows=3, n=4):
    return {"a": np.zeros((rows, 2), np.float32), "b": np.zeros((rows, n), np.int64)}


def test_open_axes_have_one_size_each():
    assert conform(arrays(), SPECS) == {"rows": 3, "n": 4}
    assert conform(arrays(n=0), SPECS, {"rows": 3}) == {"rows": 3, "n": 0}
    with pytest.raises(TensorsError, match="with rows 2"):
        conform(arrays(), SPECS, {"rows": 2})
    with pytest.raises(TensorsError, match=r"b is int64 \(5, 4\), this model has int64 \(rows, n\)"):
        conform({**arrays(), "b": arrays(rows=5)["b"]}, SPECS)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=6))
def test_every_row_is_the_mean_of_its_own_crops(untrained_artifact, shape):
    items = [make_decoded(crops, tuple((i % crops,) for i in range(regions))) for crops, regions in shape]
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


@pytest.mark.parametrize("items", [[], [make_decoded(0)], [make_decoded(1), make_decoded(0)]])
def test_an_item_without_crops_is_refused(untrained_artifact, items):
    with pytest.raises(ValueError, match="crop"):
        request_for(items, untrained_artifact.manifest.contract)


def with_pictures(contract, scene):
    pooling = PoolingInput(name="scenes", dtype="float32", shape=("rows", scene.axis), pools=scene.name)
    return Contract(inputs=(*contract.inputs, scene, pooling), outputs=contract.outputs)


def test_a_picture_is_brought_to_the_declared_range_mean_and_deviation(untrained_artifact):
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
    request = request_for([replace(make_decoded(1), pictures={"scene": pixels})], contract)
    expected = [[(-1 - 0.1) / 0.5, -0.6 - 0.2, 0.7 / 2], [0.9 / 0.5, 0.8, -1.3 / 2]]
    assert request["scene"].dtype == np.float32
    np.testing.assert_allclose(request["scene"], [[expected]], rtol=1e-6)


def test_a_region_is_shown_by_the_picture_of_its_frame(untrained_artifact):
    scene = MediaInput(
        name="scene", dtype="uint8", shape=("pictures", 1, 1, 3), view=PicturePlan(width_px=1, height_px=1)
    )
    contract = with_pictures(untrained_artifact.manifest.contract, scene)
    whole = tuple(Region("frame", (0, 0, 8, 8), frame, 0.1, (i,)) for i, frame in enumerate((3, 7)))
    video = replace(
        make_decoded(2),
        regions=(*whole, Region("face", (0, 0, 4, 4), 7, 0.1, (1,))),
        frames=2,
        frame_numbers=(3, 7),
        pictures={"scene": np.array([[[[3] * 3]], [[[7] * 3]]], np.uint8)},
    )
    still = replace(make_decoded(1), pictures={"scene": np.full((1, 1, 1, 3), 9, np.uint8)})
    request = request_for([still, video], contract)
    shown = request["scenes"] @ request["scene"][:, 0, 0, 0]
    np.testing.assert_allclose(shown, [9, (3 + 7) / 2, 3, 7, 7])


def output(rows, neighbours=5, features=7):
    rng = np.random.default_rng(rows)
    shapes = {
        "logits": (rows, 3),
        "features": (rows, features),
        "energy": (rows,),
        "novelty": (rows,),
        "neighbour_distance": (rows, neighbours),
    }
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return arrays | {"neighbour_index": np.arange(rows * neighbours).reshape(rows, neighbours)}


@given(rows=st.integers(1, 5), neighbours=st.sampled_from([0, 5]), features=st.sampled_from([0, 7]))
def test_arrays_survive_the_wire(rows, neighbours, features):
    sent = output(rows, neighbours, features)
    got = decode(encode(sent))
    assert got.keys() == sent.keys()
    for name in sent:
        np.testing.assert_array_equal(got[name], sent[name])
        assert got[name].dtype == sent[name].dtype


def test_arrays_survive_the_wire_even_from_views():
    crops = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)[::-1]
    np.testing.assert_array_equal(decode(encode({"crops": crops}))["crops"], crops)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail_otherwise(body):
    with pytest.raises(TensorsError):
        decode(body)


def test_a_result_equals_itself_and_no_other():
    one = output(3)
    assert beyond_tolerance(differences(one, one)) == []
    moved = {**one, "logits": one["logits"] + 1}
    assert [phrase.split()[0] for phrase in beyond_tolerance(differences(moved, one))] == ["logits"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_never_equal(value):
    one = output(3)
    wrong = {**one, "energy": np.full(3, value, np.float32)}
    assert differences(wrong, one)["energy"] == np.inf
    assert differences(wrong, wrong)["energy"] == np.inf


def test_other_shapes_are_never_equal():
    assert differences(output(2), output(3))["novelty"] == np.inf


def test_an_output_that_is_missing_is_never_equal():
    one = output(2)
    assert differences({name: one[name] for name in one if name != "novelty"}, one)["novelty"] == np.inf


def test_neighbours_at_the_same_distance_may_change_places():
    one = output(2)
    assert "neighbour_index" not in differences({**one, "neighbour_index": one["neighbour_index"][::-1]}, one)


def off(name, rows, by):
    """What is said of eight rows where so many are off by this in one output."""
    one = {"logits": np.zeros((8, 3), np.float32)} | {
        output: np.zeros(8, np.float32) for output in ("energy", "novelty")
    }
    moved = {key: value.copy() for key, value in one.items()}
    moved[name][:rows] += by
    return [phrase.split()[0] for phrase in beyond_tolerance(differences(moved, one))]


def test_rounding_may_choose_another_neighbour_in_a_quarter_of_the_rows_and_no_more():
    assert off("novelty", rows=2, by=0.3) == []
    assert off("novelty", rows=3, by=0.3) == ["novelty"]
    assert off("novelty", rows=1, by=0.6) == ["novelty"]
    assert off("logits", rows=2, by=0.3) == []
    assert off("logits", rows=3, by=0.002) == ["logits"]
    assert off("energy", rows=1, by=0.3) == ["energy"]


def test_a_score_that_nobody_named_a_tolerance_for_is_held_to_one():
    one, moved = {"max_logit": np.zeros(1, np.float32)}, {"max_logit": np.full(1, 0.02, np.float32)}
    assert beyond_tolerance(differences(moved, one)) == ["max_logit differs by 0.02, allowed 0.01"]
