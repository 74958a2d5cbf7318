"""FOSTER's boosted network: a new one beside the frozen old one, their logits summed."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model.backbone import NoBackbone
from detector.model.network import Network
from detector.model.scores import NetworkOutput


class Beside(nn.Module):
    """Two backbones, the first frozen: images → their rows beside one another, float32 [N, 2 B]."""

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old, self.new = old, new

    def train(self, mode: bool = True) -> "Beside":
        """Set the mode of the new one; the old one stays in evaluation mode."""
        super().train(mode)
        self.old.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return float32 [N, 2 B], no gradient in the first half."""
        with torch.no_grad():
            before = self.old(images)
        return torch.cat([before, self.new(images)], 1)


class Joint(nn.Module):
    """float32 [M, 2 D] → [M, K]: the old head on the first half, plus the new one on the second.

    Wang et al. 2022, feature boosting: one linear layer on both embeddings, whose block from the old
    embedding to new classes is zero, so that F_t = F_(t-1) + F: the new part fits what the old one leaves.
    """

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old = old
        self.new = new

    def forward(self, embedding: Tensor) -> Tensor:
        """Return float32 [M, K]; the columns of old classes come first."""
        before, own = embedding.chunk(2, 1)
        kept, fitted = self.old(before), self.new(own)
        logits: Tensor = fitted + F.pad(kept, (0, fitted.shape[1] - kept.shape[1]))
        return logits


class Boosted(Network):
    """An old network, frozen, and a new one that begins as the old one does, with a head of its own.

    Rows are [N, 2 B] and embeddings [M, 2 D], the old half first. `auxiliary` reads the new half alone.
    """

    head: Joint  # type: ignore[assignment]
    pseudo_head: Joint  # type: ignore[assignment]

    def __init__(self, old: Network, classes: int) -> None:
        super().__init__(old.architecture, classes)
        begun = {k: v for k, v in old.state_dict().items() if not k.startswith(("head.", "pseudo_head."))}
        self.load_state_dict(begun, strict=False)
        frozen = copy.deepcopy(old).requires_grad_(False).eval()
        if not isinstance(self.backbone, NoBackbone):
            self.backbone = Beside(frozen.backbone, self.backbone)
        self.head = Joint(frozen.head, self.head)
        self.pseudo_head = Joint(frozen.pseudo_head, self.pseudo_head)
        # A module that stands in two places would be in a checkpoint twice.
        for part in ("backbone", "head", "pseudo_head"):
            frozen.add_module(part, nn.Identity())
        self.between = frozen
        self.auxiliary = nn.Linear(self.embedding_size, classes)
        self.embedding_size *= 2

    def train(self, mode: bool = True) -> "Boosted":
        """Set the mode of the new half; the old one stays in evaluation mode."""
        super().train(mode)
        for part in (self.between, self.head.old, self.pseudo_head.old):
            part.eval()
        return self

    def classify(self, seen: Tensor, features: Tensor) -> NetworkOutput:
        """Return the output from rows [M, 2 B] and raw forensic features [M, F]."""
        before, own = seen.chunk(2, 1)
        with torch.no_grad():
            old = self.between.embed(before, features)
        new = self.embed(own, features)
        dropped = torch.cat([old, self.drop(new)], 1)
        return NetworkOutput(
            self.head(dropped), self.pseudo_head(dropped)[:, 0], torch.cat([old, new], 1), features
        )

    def old_logits(self, output: NetworkOutput) -> Tensor:
        """Return what the old network alone says, float32 [M, K of before]."""
        logits: Tensor = self.head.old(output.embedding.chunk(2, 1)[0])
        return logits

    def auxiliary_logits(self, output: NetworkOutput) -> Tensor:
        """Return what the new half alone says, float32 [M, K]."""
        logits: Tensor = self.auxiliary(output.embedding.chunk(2, 1)[1])
        return logits
