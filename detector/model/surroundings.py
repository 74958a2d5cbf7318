"""An item's surroundings: what its nearest known items say of where the gate's bounds lie for it.

One bound for all reals is set by the oddest of them: a new source that is named real would widen it
everywhere. So each known item has a level, how much less familiar it is itself than known items usually are,
and an item's unknown score is told over the level around it: a new source widens the bound near itself alone
(as localised conformal prediction does: Guan 2023, "Localized conformal prediction"). And a network that was
shown few reals of a source calls others of it fake though no forgery is near them: so where the level says
that little is known of the surroundings, each forgery's logit is raised by the log odds of forgeries there.

Near is near in the network's embedding. Of the n nearest known items at distances d_1 <= … <= d_n the j-th
has a weight in proportion to 1 - d_j / d_(n+1), so that one that changes places with the next has none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from detector.model.scores import NEIGHBOURS, SCORES, NetworkOutput, nearest_rows
from detector.release.gate import GateParameters
from detector.release.reference import Reference

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
    """The known items of a release as an item's surroundings. Pure torch, on the CPU."""

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
    found = zip(*(surroundings.near(part) for part in parts), strict=True)
    return Around(surroundings, Nearby(*(torch.cat(one) for one in found)))


def leaning(logits: Tensor, lean: Tensor) -> Tensor:
    """Return logits [M, K], whose class 0 is real, with `lean` [M] added to all others."""
    return torch.cat([logits[:, :1], logits[:, 1:] + lean[:, None]], 1)
