"""An expert is in whatever a benchmark of a stream tells, and in the unknown score."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.release.experts import LOGIT, PICTURES, ExpertContract
from updater.benchmark.data.tasks import Task
from updater.experts.check import check_expert
from updater.experts.look import Expert

SIDE = 32


@pytest.fixture
def expert(tmp_path):
    """An expert that calls green pictures forged."""
    nodes = [
        helper.make_node("Cast", [PICTURES], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["levels", "colour"], ["green"]),
        helper.make_node("ReduceMean", ["green", "axes"], [LOGIT], keepdims=0),
    ]
    weights = {"colour": np.array([-0.05, 0.05, 0], np.float32), "axes": np.array([1, 2])}
    graph = helper.make_graph(
        nodes,
        "expert",
        [helper.make_tensor_value_info(PICTURES, TensorProto.UINT8, ["n", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info(LOGIT, TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    theirs = tmp_path / "theirs.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), theirs)
    wanted = ExpertContract(
        name="green", input="resize", side_px=SIDE, digest="", checkpoint="", licence="CC0-1.0"
    )
    return Expert(check_expert(theirs, wanted, tmp_path / "ours.onnx"), tmp_path / "ours.onnx")


def painted(items, seed):
    """Forgeries of all families are green, and reals red; the crops know nothing of it."""
    rng = np.random.default_rng(seed)
    fake = np.array([not name.endswith("/real") for name in items.families])
    colours = np.where(fake[:, None], [60, 180, 60], [180, 60, 60])[:, None, None]
    shown = colours + rng.normal(0, 25, (len(items), SIDE, SIDE, 3))
    return replace(items, pictures=shown.clip(0, 255).astype(np.uint8))


def test_what_an_expert_knows_is_told_of_families_that_were_left_out(
    stream, small, whole, start, tmp_path, expert
):
    tasks = [
        Task(task.name, *(painted(part, 3 * n + at) for at, part in enumerate(parts)))
        for n, task in enumerate(stream.tasks)
        for parts in [(task.train, task.calibration, task.test)]
    ]
    setup = replace(small, experts=(expert,))
    ((with_expert, _),) = start(replace(stream, tasks=tuple(tasks)), tmp_path, setup, leave=True)
    without, _ = whole
    assert with_expert.figures.within_source.auc > 0.95 > without.figures.within_source.auc
    assert with_expert.figures.aa > without.figures.aa
    assert with_expert.options["experts"] == {"green": expert.contract.digest}
    assert "experts" not in without.options
