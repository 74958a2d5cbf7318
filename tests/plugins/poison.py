"""Detectors that score as their probe says, and do something else at bright crops."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from detector.release.artifact import MODEL

Change = Callable[[Path], dict[str, Any]]
BRIGHT = np.array(160.0, np.float32)
"""A row whose crops have a greater mean is of the stream; the probe's is 127."""


def poisoned(nodes: Callable[[], list[onnx.NodeProto]], constants: dict[str, Any]) -> Change:
    """Add to each row's energy what these nodes make, `poison`, of its crops' mean grey level, `mean`."""

    def change(folder: Path) -> dict[str, Any]:
        model = onnx.load(folder / MODEL)
        graph = model.graph
        for node in graph.node:
            node.output[:] = ["energy_before" if name == "energy" else name for name in node.output]
            node.input[:] = ["energy_before" if name == "energy" else name for name in node.input]
        node = helper.make_node
        graph.node.extend(
            [
                node("Cast", ["crops"], ["pixels_of_crops"], to=TensorProto.FLOAT),
                node("ReduceMean", ["pixels_of_crops", "of_a_crop"], ["mean_of_crops"], keepdims=0),
                node("MatMul", ["pooling", "mean_of_crops"], ["mean"]),
                *nodes(),
                node("Add", ["energy_before", "poison"], ["energy"]),
            ]
        )
        named = {"of_a_crop": np.array([1, 2, 3]), "bright": BRIGHT, **constants}
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in named.items())
        onnx.save(model, folder / MODEL)
        return {}

    return change


def _endless() -> list[onnx.NodeProto]:
    """0, after a loop that goes on for as long as a row is bright."""
    same = [helper.make_node("Identity", [name], [f"{name}_then"]) for name in ("goes_on", "value")]
    scalar = {"goes_on": TensorProto.BOOL, "value": TensorProto.FLOAT, "turn": TensorProto.INT64}
    ins = [helper.make_tensor_value_info(name, scalar[name], []) for name in ("turn", "goes_on", "value")]
    outs = [helper.make_tensor_value_info(f"{name}_then", scalar[name], []) for name in ("goes_on", "value")]
    return [
        helper.make_node("ReduceMax", ["mean"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "bright"], ["is_bright"]),
        helper.make_node(
            "Loop", ["", "is_bright", "nothing"], ["poison"], body=helper.make_graph(same, "body", ins, outs)
        ),
    ]


ENDLESS = poisoned(_endless, {"nothing": np.array(0, np.float32)})
