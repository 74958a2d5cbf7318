"""An ONNX file that a person brings keeps the contract, or one line says how it does not."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.release.artifact import MODEL, WEIGHTS, Artifact
from detector.release.experts import LOGIT, PICTURES
from detector.serving.session import Session, open_session
from updater.candidate import plan as planning
from updater.candidate.builder import calibrate_gate, export_graph, train_network
from updater.candidate.draft import Draft, identity_of, make_manifest
from updater.candidate.evaluate import score_items
from updater.candidate.plan import Parent, load_network, make_plan
from updater.data.training_data import Splits
from updater.experts.calibrate import BASE_WEIGHT, PROVEN_WEIGHT
from updater.experts.check import ExpertError, check_expert
from updater.experts.look import Expert, logits_of
from updater.settings import UpdaterSettings

pytestmark = pytest.mark.slow


def graph(*middle, inputs=(PICTURES, TensorProto.UINT8), output=LOGIT, opset=18, domain="", weights=()):
    """The mean level, through more nodes from "mean" to the output."""
    nodes = [
        helper.make_node("Cast", [inputs[0]], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float", "axes"], ["mean"], keepdims=0)
        if opset >= 18
        else helper.make_node("ReduceMean", ["float"], ["mean"], axes=[1, 2, 3], keepdims=0),
        *(middle or [helper.make_node("Identity", ["mean"], [output])]),
    ]
    axes = [numpy_helper.from_array(np.array([1, 2, 3]), "axes")] if opset >= 18 else []
    made = helper.make_graph(
        nodes,
        "expert",
        [helper.make_tensor_value_info(inputs[0], inputs[1], ["n", 64, 64, 3])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n"])],
        [*axes, *weights],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(made, opset_imports=imports, ir_version=8)


@pytest.fixture
def check(tmp_path, contract):
    def check(model):
        path = tmp_path / "theirs.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return check_expert(path, contract, tmp_path / "ours.onnx"), tmp_path / "ours.onnx"

    return check


@pytest.mark.parametrize("opset", [13, 18])
def test_one_that_keeps_the_contract_answers_as_it_did(check, opset):
    contract, path = check(graph(opset=opset))
    assert [one.version for one in onnx.load(path).opset_import] == [18]
    pictures = np.random.default_rng(0).integers(0, 256, (11, 64, 64, 3), np.uint8)
    found = Session(path, contract, threads=1).score({PICTURES: pictures})[LOGIT]
    assert np.allclose(found, pictures.mean((1, 2, 3)), atol=1e-2)


def node(kind, inputs, outputs=(LOGIT,), **attributes):
    return helper.make_node(kind, inputs, list(outputs), **attributes)


def number(value, name="number", kind=np.float32):
    return numpy_helper.from_array(np.array(value, kind), name)


def branch(*nodes):
    outs = [helper.make_tensor_value_info("then", TensorProto.FLOAT, None)]
    return helper.make_graph(list(nodes), "branch", [], outs)


def decided(*nodes, **more):
    """A graph in which whole numbers of the picture, `whole`, decide what the nodes do with them."""
    whole = node("Cast", ["mean"], ["whole"], to=TensorProto.INT64)
    return graph(whole, *nodes, weights=[number([0], "first", np.int64), number(1, "one", np.int64)], **more)


def outside():
    """The mean and a weight that lies in another file, as a node's attribute."""
    weight = number([0.0])
    onnx.external_data_helper.set_external_data(weight, "weights.bin")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    return graph(node("Constant", [], ["other"], value=weight), node("Add", ["mean", "other"]))


def of_function():
    model = graph(node("Own", ["mean"], domain="ai.theirs"), domain="ai.theirs")
    body = [node("Identity", ["x"], ["y"])]
    opset = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("ai.theirs", "Own", ["x"], ["y"], body, opset))
    return model


FOREIGN = node("Own", ["mean"], ["then"], domain="ai.theirs")
SAME = node("Identity", ["mean"], ["then"])
SWITCH = [number(True, "switch", bool)]
NAN = [node("Sub", ["mean", "number"], ["less"]), node("Log", ["less"])]
NAN_AT_A_LEVEL = [
    *(node("Sub", ["mean", "number"], ["less"]), node("Abs", ["less"], ["far"])),
    *(node("Sub", ["far", "near"], ["beyond"]), node("Log", ["beyond"])),
]
BESIDE = [node("ReduceMean", ["mean", "first"], ["all"], keepdims=1), node("Sub", ["mean", "all"])]
FROM_THE_SIXTH = [
    *(node("Shape", ["mean"], ["rows"]), node("Cast", ["rows"], ["count"], to=TensorProto.FLOAT)),
    *(node("Sub", ["count", "number"], ["beyond"]), node("Relu", ["beyond"], ["weight"])),
    *(node("ReduceMean", ["mean", "first"], ["all"], keepdims=1), node("Mul", ["all", "weight"], ["of_all"])),
    node("Add", ["mean", "of_all"]),
]
HUGE = [
    *(node("ConstantOfShape", ["shape"], ["zeros"]), node("Cos", ["zeros"], ["ones"])),
    *(node("Mul", ["mean", "one"], ["column"]), node("Add", ["ones", "column"], ["large"])),
    *(node("Exp", ["large"], ["larger"]), node("ReduceMax", ["larger", "first"], ["most"], keepdims=0)),
    node("Add", ["mean", "most"]),
]
OURS_ALONE = "only ONNX's own operators run, without loops, branches, random numbers and functions"
UNEVEN = "lets a picture decide a size, a place or a whole divisor of"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (b"no protobuf at all", "is no ONNX file"),
        (graph(inputs=("image", TensorProto.UINT8)), "has image: uint8 .*; an expert takes pictures: uint8"),
        (graph(inputs=(PICTURES, TensorProto.FLOAT)), "has pictures: float32 .*; an expert takes pictures"),
        (graph(output="score"), "score: float32 .*; an expert takes .* gives logit: float32"),
        (graph(opset=9), "is of opset 9: export it with opset 18"),
        (
            graph(node("Own", ["mean"], domain="ai.theirs"), domain="ai.theirs"),
            f"ai.theirs.Own: {OURS_ALONE}",
        ),
        (of_function(), f"ai.theirs.Own: {OURS_ALONE}"),
        (
            graph(
                node("If", ["switch"], then_branch=branch(FOREIGN), else_branch=branch(SAME)),
                weights=SWITCH,
                domain="ai.theirs",
            ),
            f"has If, If with a graph inside: {OURS_ALONE}",
        ),
        *(
            (graph(node(kind, ["mean"], domain=domain)), rf"has (ai\.onnx\.)?{kind}: {OURS_ALONE}")
            for kind in ("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Dropout")
            for domain in ("", "ai.onnx")  # which mean the same
        ),
        (graph(node("NonZero", ["mean"], ["at"]), node("Identity", ["mean"])), "has NonZero"),
        (outside(), "keeps its weights in another file"),
        (graph(*NAN, weights=[number(200)]), "answers NaN or infinity"),
        (graph(*NAN_AT_A_LEVEL, weights=[number(137), number(0.25, "near")]), "answers NaN or infinity"),
        (
            graph(*BESIDE, weights=[number([0], "first", np.int64)]),
            "answers otherwise .* no row of 2 may change",
        ),
        (
            graph(*FROM_THE_SIXTH, weights=[number(5), number([0], "first", np.int64)]),
            "answers otherwise .* no row of 6 may change another",
        ),
        (
            graph(
                *HUGE,
                weights=[
                    *(number([30_000, 30_000], "shape", np.int64), number(1, "one")),
                    number([0, 1], "first", np.int64),
                ],
            ),
            "(does not answer in|ended its check by .* it has) 2048 MiB",
        ),
        *(
            (decided(*nodes), f"{UNEVEN} {kind}")
            for kind, nodes in {
                "Reshape": [node("Reshape", ["mean", "whole"])],
                "Range": [
                    node("ReduceMax", ["whole"], ["end"], keepdims=0),
                    node("Range", ["one", "end", "one"], ["range"]),
                    node("Identity", ["mean"]),
                ],
                "Expand": [node("Expand", ["mean", "whole"])],
                "Gather": [node("Gather", ["mean", "whole"])],
                "Div": [
                    node("Div", ["one", "whole"], ["part"]),
                    node("Cast", ["part"], to=TensorProto.FLOAT),
                ],
            }.items()
        ),
    ],
)
def test_what_does_not_keep_it_is_refused_in_one_line(check, model, said):
    with pytest.raises(ExpertError, match=said) as error:
        check(model)
    assert "\n" not in str(error.value)


# A release carries its experts inside of its detector's graph, and they count as they were calibrated.
@pytest.fixture
def expert(contract, tmp_path):
    """Makes an expert that knows blocky pictures: how seldom neighbours in a row differ, scaled."""

    def expert(name="small", view="crop", side=64):
        numbers = {"a": [0], "b": [side - 2], "c": [2], "one": [1], "end": [side - 1], "axes": [1, 2, 3]}
        constants = [numpy_helper.from_array(np.array(v), n) for n, v in numbers.items()]
        constants.append(numpy_helper.from_array(np.float32(-2), "k"))
        nodes = [
            helper.make_node("Cast", [PICTURES], ["x"], to=TensorProto.FLOAT),
            helper.make_node("Slice", ["x", "a", "b", "c", "c"], ["even"]),
            helper.make_node("Slice", ["x", "one", "end", "c", "c"], ["odd"]),
            helper.make_node("Sub", ["even", "odd"], ["d"]),
            helper.make_node("Abs", ["d"], ["e"]),
            helper.make_node("ReduceMean", ["e", "axes"], ["m"], keepdims=0),
            helper.make_node("Mul", ["m", "k"], [LOGIT]),
        ]
        made = helper.make_graph(
            nodes,
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
    assert (carried.digest, carried.licence) == (small.contract.digest, "Apache-2.0")
    # Of the one family that is known, it tells nothing.
    assert BASE_WEIGHT <= manifest.gate.terms["expert_small"].weight < BASE_WEIGHT + PROVEN_WEIGHT
    assert [spec.name for spec in manifest.contract.inputs] == ["crops", "pooling"]
    items = labelled({"real": 12, "striped": 12, "blocky": 12}, seed=5)
    scored = score_items(open_session(artifact, threads=1), items)
    standard = (logits_of(small, items) - carried.median) / carried.scale
    # Of what is below the reals' median the score is the whole, of the rest a part.
    assert np.allclose(
        scored["expert_small"].clip(max=0), standard.clip(max=0), atol=1e-2 * np.abs(standard).max()
    )
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
