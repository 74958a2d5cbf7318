"""Everything between crops and scores as one torch module: this is what a release exports."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from detector import scores
from detector.gate import GateParameters
from detector.network import Network, NetworkOutput
from detector.reference import Reference as Reference


class GraphOutput(NamedTuple):
    """One row for each pool of crops; shapes, units and signs as in detector.scored.Scored."""

    logits: Tensor
    pseudo_logit: Tensor
    embedding: Tensor
    features: Tensor
    energy: Tensor
    novelty: Tensor
    unknown_score: Tensor
    neighbour_index: Tensor
    neighbour_distance: Tensor


class DetectorGraph(nn.Module):
    """A network with the gate's parameters and the reference set as constants.

    forward(crops uint8 [N, S, S, 3], pooling float32 [M, N] with rows summing to 1) → GraphOutput of
    M rows. A network without forensic features takes no reference: then its novelties are 0, and there
    are no neighbours (n = 0). Raises ValueError when only one of the two is forensic.
    """

    mean: Tensor
    whitening: Tensor
    reference: Tensor
    reach: Tensor
    embedding_mean: Tensor
    embedding_whitening: Tensor
    embedding_reference: Tensor
    embedding_reach: Tensor
    trace_whitening: Tensor
    traces: Tensor
    trace_reach: Tensor

    def __init__(self, network: Network, gate: GateParameters, reference: Reference | None) -> None:
        super().__init__()
        if (reference is not None) != network.architecture.forensic:
            raise ValueError("a network with forensic features needs a reference set, one without takes none")
        self.network = network
        self.gate = gate
        self.searches = reference is not None
        if reference is not None:
            self.register_buffer("mean", torch.from_numpy(reference.mean).float())
            self.register_buffer("whitening", torch.from_numpy(reference.whitening).float())
            self.register_buffer("reference", torch.from_numpy(reference.features).float())
            self.register_buffer("reach", scores.reference_reach(self.reference))
            self.register_buffer("embedding_mean", torch.from_numpy(reference.embedding_mean).float())
            self.register_buffer(
                "embedding_whitening", torch.from_numpy(reference.embedding_whitening).float()
            )
            self.register_buffer("embedding_reference", torch.from_numpy(reference.embeddings).float())
            self.register_buffer("embedding_reach", scores.reference_reach(self.embedding_reference))
            self.trace_widths = [int(width) for width in reference.trace_widths]
            self.register_buffer("trace_whitening", torch.from_numpy(reference.trace_whitening).float())
            self.register_buffer("traces", torch.from_numpy(reference.traces).float())
            self.register_buffer("trace_reach", scores.trace_reach(self.traces, self.trace_widths))

    def forward(self, crops: Tensor, pooling: Tensor) -> GraphOutput:
        """Score M pools of N crops."""
        output: NetworkOutput = self.network(crops.permute(0, 3, 1, 2).float(), pooling)
        energy = scores.energy(output.logits, self.gate.temperature)
        pseudo = scores.pseudo_score(output.logits, output.pseudo_logit)
        if self.searches:
            whitened = (output.features - self.mean) @ self.whitening
            novelty, index, distance = scores.novelty(whitened, self.reference, self.reach)
            embedded = (output.embedding - self.embedding_mean) @ self.embedding_whitening
            embedding_novelty = scores.novelty(embedded, self.embedding_reference, self.embedding_reach)[0]
            traced = (output.features - self.mean) @ self.trace_whitening
            trace_novelty = scores.trace_novelty(traced, self.traces, self.trace_reach, self.trace_widths)
        else:
            novelty = embedding_novelty = trace_novelty = torch.zeros_like(energy)
            distance = output.logits[:, :0]
            index = distance.long()
        unknown_score = scores.fused(energy, pseudo, novelty, embedding_novelty, trace_novelty, self.gate)
        return GraphOutput(*output, energy, novelty, unknown_score, index, distance)
