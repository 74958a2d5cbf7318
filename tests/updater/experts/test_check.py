"""An ONNX file that a person brings keeps the contract, or one line says how it does not."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.release.experts import LOGIT, PICTURES
from detector.serving.session import Session
from updater.experts.check import ExpertError, check_expert

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
