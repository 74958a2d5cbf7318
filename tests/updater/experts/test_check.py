"""An ONNX file that a person brings keeps the contract, or one line says how it does not."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.release.experts import LOGIT, PICTURES
from detector.serving.session import Session
from updater.experts.build import ExpertError
from updater.experts.check import checked


def graph(
    *middle,
    inputs=(PICTURES, TensorProto.UINT8),
    output=LOGIT,
    opset=18,
    domain="",
    weights=(),
):
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
        return checked(path, contract, tmp_path / "ours.onnx"), tmp_path / "ours.onnx"

    return check


@pytest.mark.parametrize("opset", [13, 18])
def test_one_that_keeps_the_contract_answers_as_it_did(check, opset):
    contract, path = check(graph(opset=opset))
    assert [one.version for one in onnx.load(path).opset_import] == [18]
    pictures = np.random.default_rng(0).integers(0, 256, (11, 64, 64, 3), np.uint8)
    found = Session(path, contract, threads=1).score({PICTURES: pictures})[LOGIT]
    assert np.allclose(found, pictures.mean((1, 2, 3)), atol=1e-2)


NAN = [helper.make_node("Sub", ["mean", "high"], ["less"]), helper.make_node("Log", ["less"], [LOGIT])]
HIGH = numpy_helper.from_array(np.array(200, np.float32), "high")
BESIDE = [
    helper.make_node("ReduceMean", ["mean", "first"], ["all"], keepdims=1),
    helper.make_node("Sub", ["mean", "all"], [LOGIT]),
]
FIRST = numpy_helper.from_array(np.array([0]), "first")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (b"no protobuf at all", "is no ONNX file"),
        (graph(inputs=("image", TensorProto.UINT8)), "has image: uint8 .*; an expert takes pictures: uint8"),
        (graph(inputs=(PICTURES, TensorProto.FLOAT)), "has pictures: float32 .*; an expert takes pictures"),
        (graph(output="score"), "score: float32 .*; an expert takes .* gives logit: float32"),
        (graph(opset=9), "is of opset 9: export it with opset 18"),
        (
            graph(helper.make_node("Own", ["mean"], [LOGIT], domain="ai.theirs"), domain="ai.theirs"),
            "has operators of ai.theirs: only ONNX's own run",
        ),
        (graph(*NAN, weights=[HIGH]), "answers NaN or infinity"),
        (graph(*BESIDE, weights=[FIRST]), "answers otherwise .* other pictures"),
    ],
    ids=["bytes", "name", "dtype", "output", "opset", "custom", "nan", "beside"],
)
def test_what_does_not_keep_it_is_refused_in_one_line(check, model, said):
    with pytest.raises(ExpertError, match=said) as error:
        check(model)
    assert "\n" not in str(error.value)
