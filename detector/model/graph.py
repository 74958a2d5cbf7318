"""Everything between crops and scores as one torch module: this is what a release exports."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detector.model.network import Network
from detector.model.scores import NetworkOutput, fit_scores, fuse_scores, search, surprise
from detector.release.artifact import Reference as Reference
from detector.release.experts import CarriedExpert
from detector.release.manifest import GateParameters


def leaning(logits: Tensor, lean: Tensor) -> Tensor:
    """Return logits [M, K], whose class 0 is real, with `lean` [M] added to all others."""
    return torch.cat([logits[:, :1], logits[:, 1:] + lean[:, None]], 1)


def expert_scores(
    experts: Sequence[CarriedExpert], logits: Sequence[Tensor], real: Tensor
) -> dict[str, Tensor]:
    """Return each expert's score of M items by its name, float32 [M]; higher means less familiar.

    logits: float32 [M] of each expert; real: how probably each item is real by the network alone, [M]. It
    is the `surprise` in the logit, in units of held-back reals.
    """
    return {
        expert.score: surprise((logit - expert.median) / expert.scale, real)
        for expert, logit in zip(experts, logits, strict=True)
    }


def expert_lean(experts: Sequence[CarriedExpert], logits: Sequence[Tensor]) -> Tensor:
    """Return the sum of experts' votes for each forgery's logit, nats, float32 [M]; logits: as above."""
    votes = [expert.slope * logit + expert.offset for expert, logit in zip(experts, logits, strict=True)]
    return torch.stack(votes).sum(0)


class DetectorGraph(nn.Module):
    """A network with the gate's terms and the reference set as constants, on the CPU.

    forward(crops uint8 [N, S, S, 3], pooling float32 [M, N] with rows summing to 1) gives arrays of M rows
    by name: the network's output, each score of the gate under its own name, the unknown score, and the
    neighbours in the reference set. A network without forensic features takes no reference: then its
    novelty is 0, and there are no neighbours (n = 0). Of each expert it takes the logits of the crops or of
    N' whole pictures, float32 [N] or [N'] (`detector.model.export`); for the latter also picture, uint8
    [N', S', S', 3], which experts alone read, and picture_pooling, float32 [M, N']. Raises ValueError where
    only one of network and reference is forensic, or a term of the gate cannot be made.
    """

    def __init__(
        self,
        network: Network,
        gate: GateParameters,
        reference: Reference | None,
        experts: Sequence[CarriedExpert] = (),
    ) -> None:
        super().__init__()
        if (reference is not None) != network.architecture.forensic:
            raise ValueError("a network with forensic features needs a reference set, one without takes none")
        self.network = network
        self.experts = tuple(experts)
        self.gate = gate
        self.scores = fit_scores(reference)
        if lacking := gate.terms.keys() - self.scores.keys() - {expert.score for expert in experts}:
            raise ValueError(f"the gate has terms that it cannot make: {', '.join(sorted(lacking))}")
        self.search = None if reference is None else search(reference)

    def forward(
        self,
        crops: Tensor,
        pooling: Tensor,
        picture: Tensor | None = None,
        picture_pooling: Tensor | None = None,
        **expert_logits: Tensor,
    ) -> dict[str, Tensor]:
        """Score M pools of N crops, and of the pictures that they are of."""
        output: NetworkOutput = self.network(crops.permute(0, 3, 1, 2).float(), pooling)
        scores = {"novelty": torch.zeros_like(output.pseudo_logit)}
        scores |= {name: score(output) for name, score in self.scores.items()}
        if self.search is None:
            distance = output.logits[:, :0]
            index = distance.long()
        else:
            _, index, distance = self.search(output.features)
        logits = []
        for expert in self.experts:
            pools = pooling if expert.input == "crop" else picture_pooling
            assert pools is not None
            logits.append(pools @ expert_logits[expert.raw.name])
        scores |= expert_scores(self.experts, logits, torch.softmax(output.logits, 1)[:, 0])
        if self.experts:
            lean = expert_lean(self.experts, logits)
            output = output._replace(logits=leaning(output.logits, lean))
        return {
            **output._asdict(),
            **scores,
            "unknown_score": fuse_scores(scores, self.gate),
            "neighbour_index": index,
            "neighbour_distance": distance,
        }
