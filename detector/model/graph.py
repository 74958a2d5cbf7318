"""Everything between crops and scores as one torch module: this is what a release exports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from detector.model.network import Network
from detector.model.scores import (
    NEIGHBOURS,
    SCORES,
    NetworkOutput,
    fitted,
    fused,
    nearest_rows,
    search,
    surprise,
)
from detector.release.artifact import Reference as Reference
from detector.release.experts import CarriedExpert
from detector.release.manifest import GateParameters

_LEAN = 2.0
"""weight of the surroundings' log odds beside the network's own, which is too sure of what it has not seen"""
_ODD = 8.0
"""the level, in units of the unknown score, from which the log odds count in full"""


class Nearby(NamedTuple):
    """The surroundings of M items among a release's known items."""

    places: Tensor
    """int64 [M, n], of the nearest, nearest first"""
    weight: Tensor
    """float32 [M, n] > 0: how much each counts; the rows sum to 1"""

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean around each of the M items of what each known item has, float32 [R]."""
        return (values[self.places] * self.weight).sum(1)


class Surroundings:
    """The known items of a release as an item's surroundings: what the nearest say of its bounds.

    One bound for all reals is set by the oddest of them: a new source that is named real would widen it
    everywhere. So the unknown score is localised: the mean excess score of the nearest known items, their
    level, is subtracted (localised conformal prediction: Guan 2023, "Localized conformal prediction").
    And a network that was shown few reals of a source calls others of it fake though no forgery is near. So
    where the level is high, each forgery's logit is raised by the log odds of forgeries there.

    Near is near in the network's embedding. Of the n nearest at distances d_1 <= … <= d_n the j-th has a
    weight in proportion to 1 - d_j / d_(n+1), so that one that changes places with the next has none. Pure
    torch, on the CPU.
    """

    def __init__(self, reference: Reference) -> None:
        """Raises ValueError where the reference set is too small."""
        self._mean, self._whitening, self._known = (
            torch.from_numpy(part).float()
            for part in (reference.embedding_mean, reference.embedding_whitening, reference.embeddings)
        )
        self._forged = torch.from_numpy(reference.forged)
        own = {name: entry.own(reference) for name, entry in SCORES.items() if entry.own is not None}
        self._own: dict[str, Tensor] = own

    def near(self, output: NetworkOutput) -> Nearby:
        """Find the surroundings of M items."""
        rows = (output.embedding - self._mean) @ self._whitening
        places, distance = nearest_rows(rows, self._known, NEIGHBOURS + 1)
        weight = (1 - distance[:, :-1] / distance[:, -1:].clamp_min(1e-6)).clamp_min(1e-6)
        return Nearby(places[:, :-1], weight / weight.sum(1, keepdim=True))

    def levels(self, gate: GateParameters) -> Tensor:
        """Return how much less familiar each known item is than known items usually are, float32 [R], >= 0.

        By those terms of the gate that measure a distance, to all other known items. Not for the exported
        graph.
        """
        terms = {name: term for name, term in gate.terms.items() if name in self._own}
        own = torch.zeros(len(self._known))
        for name, term in terms.items():
            own += term.weight * ((self._own[name] - term.median) / term.scale).clamp(-gate.clip, gate.clip)
        return (own - own.median()).clamp_min(0)

    def lean(self, near: Nearby, level: Tensor) -> Tensor:
        """Return what is added to each forgery's logit, float32 [M]; level: that around each item, [M].

        The log odds of n known items, a share of them forgeries, by Krichevsky and Trofimov's estimate, which
        is finite where all are of one side. Where no real, or no forgery, is known: 0.
        """
        forged = NEIGHBOURS * near.mean(self._forged.float())
        if self._forged.all() or not self._forged.any():
            return torch.zeros_like(forged)
        return (level / _ODD).clamp(0, 1) * _LEAN * torch.log((forged + 0.5) / (NEIGHBOURS - forged + 0.5))


@dataclass(frozen=True)
class Around:
    """The surroundings of n items, whatever the gate. Not for the exported graph."""

    surroundings: Surroundings
    near: Nearby

    def level(self, gate: GateParameters) -> Tensor:
        """Return what is taken from each item's unknown score, float32 [n]."""
        return self.near.mean(self.surroundings.levels(gate))

    def lean(self, gate: GateParameters) -> Tensor:
        """Return what is added to each forgery's logit, float32 [n]."""
        return self.surroundings.lean(self.near, self.level(gate))


def around(reference: Reference, parts: Iterable[NetworkOutput]) -> Around:
    """Find the surroundings of items, given in parts: all their distances at once would fill the memory."""
    surroundings = Surroundings(reference)
    nearby = zip(*(surroundings.near(part) for part in parts), strict=True)
    return Around(surroundings, Nearby(*(torch.cat(field) for field in nearby)))


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
    """Return what experts, at least one, add to each forgery's logit, nats, float32 [M]; logits: as above."""
    votes = [expert.slope * logit + expert.offset for expert, logit in zip(experts, logits, strict=True)]
    return torch.stack(votes).sum(0)


class DetectorGraph(nn.Module):
    """A network with the gate's terms and the reference set as constants, on the CPU.

    forward(crops uint8 [N, S, S, 3], pooling float32 [M, N] with rows summing to 1) gives arrays of M rows
    by name: the network's output, each score of the gate under its own name, the unknown score, and the
    neighbours in the reference set. A network without forensic features takes no reference: then its
    novelty is 0, and there are no neighbours (n = 0). Of each expert it takes the logits of the crops or of
    N' whole pictures, float32 [N] or [N'] (`detector.model.experts`); for the latter also picture, uint8
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
        self.scores = fitted(reference)
        if lacking := gate.terms.keys() - self.scores.keys() - {expert.score for expert in experts}:
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
        unknown = fused(scores, self.gate)
        if self.surroundings is not None and self.levels is not None:
            near = self.surroundings.near(output)
            level = near.mean(self.levels)
            unknown = unknown - level
            output = output._replace(logits=leaning(output.logits, self.surroundings.lean(near, level)))
        return {
            **output._asdict(),
            **scores,
            "unknown_score": unknown,
            "neighbour_index": index,
            "neighbour_distance": distance,
        }
