"""How experts' ONNX files become part of the detector's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from detector.model.export import write_onnx
from detector.model.graph import DetectorGraph
from detector.release.contract import Contract, Input
from detector.release.experts import LOGIT, PICTURES, CarriedExpert
from detector.serving.session import Session


def export_with_experts(
    graph: DetectorGraph, inputs: Sequence[Input], experts: Mapping[str, Path], path: Path
) -> Contract:
    """Write a detector to path as `detector.model.export.export` does, with its experts in the same file.

    experts: the ONNX file of each of the graph's experts, by name.
    """
    raw = [expert.raw for expert in graph.experts]
    outputs = write_onnx(graph, (*inputs, *raw), path)
    whole = onnx.load(str(path))
    given = {value.name for value in whole.graph.input}
    # The exporter leaves out what the graph does not read, such as pictures that an expert alone looks at.
    whole.graph.input.extend(
        helper.make_tensor_value_info(
            spec.name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.shape
        )
        for spec in inputs
        if spec.name not in given
    )
    for expert in graph.experts:
        _put_in(whole, onnx.load(str(experts[expert.name])), expert)
    onnx.checker.check_model(whole)
    onnx.save(whole, str(path))
    return Contract(inputs=tuple(inputs), outputs=outputs)


def _put_in(whole: onnx.ModelProto, model: onnx.ModelProto, expert: CarriedExpert) -> None:
    """Put an expert's nodes before the detector's, in the place of the input of its logits."""
    name = expert.raw.name
    own = onnx.compose.add_prefix(model, f"{name}/").graph
    nodes = [
        helper.make_node("Identity", [expert.view], [f"{name}/{PICTURES}"]),
        *own.node,
        helper.make_node("Identity", [f"{name}/{LOGIT}"], [name]),
        *whole.graph.node,
    ]
    inputs = [value for value in whole.graph.input if value.name != name]
    for field, values in (("node", nodes), ("input", inputs)):
        del getattr(whole.graph, field)[:]
        getattr(whole.graph, field).extend(values)
    whole.graph.initializer.extend(own.initializer)


class WithExperts(nn.Module):
    """A detector's torch graph, asked as the exported one is: its experts' logits come of their own files."""

    def __init__(self, graph: DetectorGraph, experts: Mapping[str, Path]) -> None:
        super().__init__()
        self.graph = graph
        threads = torch.get_num_threads()
        self.sessions = {expert: Session(experts[expert.name], expert, threads) for expert in graph.experts}

    def forward(self, **request: Tensor) -> dict[str, Tensor]:
        """Score as `DetectorGraph.forward` does, of the same request without the logits."""
        logits = {
            expert.raw.name: torch.from_numpy(session.score({PICTURES: request[expert.view].numpy()})[LOGIT])
            for expert, session in self.sessions.items()
        }
        output: dict[str, Tensor] = self.graph(**request, **logits)
        return output
