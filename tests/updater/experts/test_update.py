"""A release carries its experts inside of its detector's graph, and they count as they were calibrated."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.release.artifact import MODEL, WEIGHTS, Artifact
from detector.release.experts import LOGIT, PICTURES
from detector.serving.session import open_session
from updater.candidate import plan as planning
from updater.candidate.builder import calibrate_gate, export_graph, train_network
from updater.candidate.draft import Draft, identity_of, make_manifest
from updater.candidate.evaluate import score_items
from updater.candidate.plan import Parent, load_network, make_plan
from updater.data.training_data import Splits
from updater.experts.calibrate import BASE_WEIGHT, PROVEN_WEIGHT
from updater.experts.check import check_expert
from updater.experts.look import Expert, logits_of
from updater.settings import UpdaterSettings

pytestmark = pytest.mark.slow


@pytest.fixture
def expert(contract, tmp_path):
    """Makes an expert that knows blocky pictures: how seldom neighbours in a row differ, scaled."""

    def expert(name="small", view="crop", side=64):
        numbers = {"a": [0], "b": [side - 2], "c": [2], "one": [1], "end": [side - 1], "axes": [1, 2, 3]}
        constants = [numpy_helper.from_array(np.array(v), n) for n, v in numbers.items()]
        constants.append(numpy_helper.from_array(np.float32(-2), "k"))
        made = helper.make_graph(
            [
                helper.make_node("Cast", [PICTURES], ["x"], to=TensorProto.FLOAT),
                helper.make_node("Slice", ["x", "a", "b", "c", "c"], ["even"]),
                helper.make_node("Slice", ["x", "one", "end", "c", "c"], ["odd"]),
                helper.make_node("Sub", ["even", "odd"], ["d"]),
                helper.make_node("Abs", ["d"], ["e"]),
                helper.make_node("ReduceMean", ["e", "axes"], ["m"], keepdims=0),
                helper.make_node("Mul", ["m", "k"], [LOGIT]),
            ],
            "expert",
            [helper.make_tensor_value_info(PICTURES, TensorProto.UINT8, ["n", side, side, 3])],
            [helper.make_tensor_value_info(LOGIT, TensorProto.FLOAT, ["n"])],
            constants,
        )
        path = tmp_path / f"{name}-theirs.onnx"
        onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
        wanted = contract.model_copy(update={"name": name, "input": view, "side_px": side})
        return Expert(check_expert(path, wanted, tmp_path / f"{name}.onnx"), tmp_path / f"{name}.onnx")

    return expert


@pytest.fixture
def release(tmp_path, labelled, short_recipes, few_measured, monkeypatch):
    splits = Splits(*(labelled({"real": n, "striped": n}, seed) for seed, n in enumerate((24, 16, 8))))

    def release(name, *experts, parent=None, pictures=False):
        shown, rng = splits, np.random.default_rng(0)
        if pictures:
            made = (
                replace(part, pictures=rng.integers(0, 256, (len(part), 32, 32, 3), np.uint8))
                for part in (splits.train, splits.calibration, splits.test)
            )
            shown = Splits(*made)
        settings = UpdaterSettings(work_dir=tmp_path / "work", device="cpu", threads=1)
        whole = planning.PicturePlan(width_px=32, height_px=32) if pictures else None
        plan = replace(make_plan(settings, parent, shown), experts=experts, picture_plan=whole)
        draft = Draft(tmp_path / name, identity_of(plan, 0))
        trained = train_network(draft, plan)
        calibrated = calibrate_gate(draft, trained)
        exported = export_graph(draft, trained, calibrated)
        return Artifact(draft.artifact, make_manifest(plan, calibrated, exported), "0" * 64), shown

    return release


def test_a_release_carries_what_its_expert_says_and_asks_for_nothing_more(expert, release, labelled):
    small = expert()
    artifact, _ = release("with", small)
    manifest = artifact.manifest
    (carried,) = manifest.experts
    assert (carried.digest, carried.licence) == (small.contract.digest, "MIT")
    # Of the one family that is known, it tells nothing.
    assert BASE_WEIGHT <= manifest.gate.terms["expert_small"].weight < BASE_WEIGHT + PROVEN_WEIGHT
    assert [spec.name for spec in manifest.contract.inputs] == ["crops", "pooling"]
    items = labelled({"real": 12, "striped": 12, "blocky": 12}, seed=5)
    scored = score_items(open_session(artifact, threads=1), items)
    standard = (logits_of(small, items) - carried.median) / carried.scale
    # Of what is below the reals' median the score is the whole, of the rest a part.
    near = 1e-2 * np.abs(standard).max()
    assert np.allclose(scored["expert_small"].clip(max=0), standard.clip(max=0), atol=near)
    assert (scored["expert_small"] <= standard.clip(min=0) + 0.05 * np.abs(standard).max()).all()


def test_a_release_without_experts_has_none_in_its_manifest_and_an_older_manifest_loads(release):
    artifact, _ = release("without")
    said = artifact.manifest.model_dump(mode="json")
    assert said.pop("experts") == []
    assert type(artifact.manifest).model_validate(said) == artifact.manifest


def test_an_update_of_a_release_with_experts_keeps_its_calls_with_the_expert_and_without(expert, release):
    small = expert()
    artifact, _ = release("first", small)
    held = artifact.manifest
    parent = Parent(artifact, load_network(artifact.folder / WEIGHTS, held.architecture, held.classes))
    for name, experts in (("with", (small,)), ("without", ())):
        candidate, _ = release(name, *experts, parent=parent)
        assert [one.name for one in candidate.manifest.experts] == [one.contract.name for one in experts]
        assert (candidate.folder / MODEL).is_file()


def test_an_expert_of_whole_pictures_stands_beside_one_of_crops(expert, release):
    whole = expert("whole", "resize", 32)
    artifact, splits = release("both", whole, expert(), pictures=True)
    manifest = artifact.manifest
    inputs = "crops", "pooling", "picture", "picture_pooling"
    assert tuple(spec.name for spec in manifest.contract.inputs) == inputs
    scored, (own, _) = score_items(open_session(artifact, threads=1), splits.test), manifest.experts
    standard = (logits_of(whole, splits.test) - own.median) / own.scale
    assert np.allclose(scored["expert_whole"].clip(max=0), standard.clip(max=0), atol=0.05)
    assert manifest.gate.terms["expert_whole"].weight < (BASE_WEIGHT + PROVEN_WEIGHT) / 2
