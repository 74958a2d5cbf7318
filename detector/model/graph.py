"""Everything between crops and scores as one torch module: this is what a release exports."""

import torch
from torch import Tensor, nn

from detector.model.network import Network, PictureBranch
from detector.model.scores import NetworkOutput, fitted, fused, search
from detector.model.surroundings import Surroundings, leaning
from detector.release.gate import GateParameters
from detector.release.reference import Reference as Reference


class DetectorGraph(nn.Module):
    """A network with the gate's terms and the reference set as constants, on the CPU.

    forward(crops uint8 [N, S, S, 3], pooling float32 [M, N] with rows summing to 1) gives arrays of M rows
    by name: the network's output, each score of the gate under its own name, the unknown score, and the
    neighbours in the reference set. A network without forensic features takes no reference: then its
    novelty is 0, and there are no neighbours (n = 0). With a picture branch it also takes picture, uint8
    [N', S', S', 3], and picture_pooling, float32 [M, N'], and the branch's logits are added. Raises
    ValueError where only one of network and reference is forensic, or a term of the gate cannot be made.
    """

    def __init__(
        self,
        network: Network,
        gate: GateParameters,
        reference: Reference | None,
        branch: PictureBranch | None = None,
    ) -> None:
        super().__init__()
        if (reference is not None) != network.architecture.forensic:
            raise ValueError("a network with forensic features needs a reference set, one without takes none")
        self.network = network
        self.branch = branch
        self.gate = gate
        self.scores = fitted(reference)
        if lacking := gate.terms.keys() - self.scores.keys():
            raise ValueError(
                f"the gate has terms that this network cannot make: {', '.join(sorted(lacking))}"
            )
        self.search = None if reference is None else search(reference)
        if gate.surroundings and reference is None:
            raise ValueError("the gate knows surroundings, which there are none of without a reference set")
        self.surroundings = Surroundings(reference) if gate.surroundings and reference is not None else None
        self.levels = None if self.surroundings is None else self.surroundings.levels(gate)

    def forward(
        self,
        crops: Tensor,
        pooling: Tensor,
        picture: Tensor | None = None,
        picture_pooling: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Score M pools of N crops, and of the pictures that they are of."""
        output: NetworkOutput = self.network(crops.permute(0, 3, 1, 2).float(), pooling)
        found = {"novelty": torch.zeros_like(output.pseudo_logit)}
        found |= {name: score(output) for name, score in self.scores.items()}
        if self.search is None:
            distance = output.logits[:, :0]
            index = distance.long()
        else:
            _, index, distance = self.search(output.features)
        if self.branch is not None:
            output = output._replace(logits=output.logits + self.branch(picture, picture_pooling))
        unknown = fused(found, self.gate)
        if self.surroundings is not None and self.levels is not None:
            near = self.surroundings.near(output)
            level = near.mean(self.levels)
            unknown = unknown - level
            output = output._replace(logits=leaning(output.logits, self.surroundings.lean(near, level)))
        return {
            **output._asdict(),
            **found,
            "unknown_score": unknown,
            "neighbour_index": index,
            "neighbour_distance": distance,
        }
