"""DyTox's network: patch tokens of any backbone, read by one attention block for one learnt token a task.

Douillard et al. 2022, "DyTox: transformers for continual learning with dynamic token expansion". The tokens
of a ConViT are those after its first eight blocks, without a class token, as in CDDB's published code; where
the width D is the backbone's own they are read as they come, by a block with as many heads as the backbone's
and an MLP of 4 D. That is the paper's form: convit_base at width 768. Of any other backbone the positions of
the last feature map are the tokens (`forward_features`), and of another width they are brought to it, for a
small block of four heads and an MLP of 2 D. What the forensic branch makes of an item stands beside each
task's embedding.

Rows are the tokens beside one another, [N, T * C]. A pool is their mean, place by place. A network's
architecture says its tasks, so that a manifest and a file do.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model.network import Network
from detector.release.manifest import Architecture

Columns = tuple[int, int]
"""the logits that a task's classifier speaks for: from, to"""
_CONVIT_BLOCKS = 8
"""those before the task attention, in CDDB's published code"""
_SMALL_HEADS, _SMALL_MLP, _OWN_MLP = 4, 2, 4


class PatchTokens(nn.Module):
    """Images → the positions of the last feature map, float32 [N, T * C]."""

    def __init__(self, backbone: nn.Module, channels: int) -> None:
        super().__init__()
        self.whole = backbone
        self.channels = channels
        self.cut: tuple[str, ...] = ()
        """what the names of weights begin with that the whole backbone has and this one lacks"""
        if _is_convit(backbone):
            blocks: Any = backbone.blocks
            self.cut = ("norm.", *(f"blocks.{number}." for number in range(_CONVIT_BLOCKS, len(blocks))))
            # With fewer blocks than are local none is left that would add the class token.
            backbone.blocks, backbone.norm = blocks[:_CONVIT_BLOCKS], nn.Identity()
            backbone.cls_token.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return each position's channels, position after position."""
        seen: Tensor = self.whole.forward_features(images)  # type: ignore[operator]
        if seen.ndim == 4 and seen.shape[1] == self.channels:
            seen = seen.permute(0, 2, 3, 1)
        return seen.flatten(1)


class TaskAttention(nn.Module):
    """One block that all tasks share: each task's token asks, the patches and the token itself answer.

    With z = norm([token, patches]): A = softmax(W_q token (W_k z)^T / sqrt(D / h)) for each of h heads,
    c = token + W_o (A W_v z) + b_o, and the block returns c + MLP(norm(c)).
    """

    def __init__(self, width: int, heads: int = _SMALL_HEADS, mlp: int = _SMALL_MLP) -> None:
        super().__init__()
        self.heads = heads if width % heads == 0 else 1
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp * width), nn.GELU(), nn.Linear(mlp * width, width))

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """tokens: float32 [t, D]; patches: [M, T, D] → [M, t, D]. No task sees another's token."""
        own, others = self.before(tokens), self.before(patches)
        query, key, value = (self._split(part(own)) for part in (self.query, self.key, self.value))
        keys, values = self._split(self.key(others)), self._split(self.value(others))
        of_patches = torch.einsum("thd,mphd->mthp", query, keys)
        # A tracer takes `len` for a constant, and would export this for one number of rows.
        of_itself = torch.einsum("thd,thd->th", query, key).expand(patches.shape[0], -1, -1)
        scale = (tokens.shape[1] / self.heads) ** -0.5
        share = F.softmax(torch.cat([of_itself[..., None], of_patches], 3) * scale, 3)
        read = share[..., :1] * value + torch.einsum("mthp,mphd->mthd", share[..., 1:], values)
        mixed = tokens + self.out(read.flatten(2))
        answer: Tensor = mixed + self.mlp(self.between(mixed))
        return answer

    def _split(self, values: Tensor) -> Tensor:
        return values.reshape(*values.shape[:-1], self.heads, -1)


class TaskHeads(nn.Module):
    """A classifier a task, each on its task's part of the embedding and on the forensic part.

    As one matrix: blocks, and zero where a task does not speak. Tasks with the same columns ("bc") add up.
    """

    def __init__(self, width: int, forensic: int, tasks: Sequence[Columns]) -> None:
        super().__init__()
        self.width, self.tasks = width, tuple(tasks)
        self.parts = nn.ModuleList(nn.Linear(width + forensic, end - first) for first, end in tasks)

    @property
    def weight(self) -> Tensor:
        """float32 [K, t * D + forensic]"""
        rows = []
        for number, (part, (first, end)) in enumerate(zip(self.parts, self.tasks, strict=True)):
            whole = part.weight
            assert isinstance(whole, Tensor)
            left, right = self.width * number, self.width * (len(self.tasks) - 1 - number)
            own = F.pad(whole[:, : self.width], (left, right))
            rows.append(self._place_rows(torch.cat([own, whole[:, self.width :]], 1), first, end))
        return torch.stack(rows).sum(0)

    @property
    def bias(self) -> Tensor:
        """float32 [K]"""
        parts = []
        for part, (first, end) in zip(self.parts, self.tasks, strict=True):
            assert isinstance(part.bias, Tensor)
            parts.append(self._place_rows(part.bias[:, None], first, end)[:, 0])
        return torch.stack(parts).sum(0)

    def _place_rows(self, rows: Tensor, first: int, end: int) -> Tensor:
        return F.pad(rows, (0, 0, first, max(last for _, last in self.tasks) - end))

    def forward(self, embedding: Tensor) -> Tensor:
        """float32 [M, t * D + forensic] → [M, K]"""
        return F.linear(embedding, self.weight, self.bias)


class TaskTokens(Network):
    """A network whose embedding is one part of width D a task, normalised by the task's own norm, and the
    forensic part. `divergence` reads the newest task's part while an update is trained; else None.

    Its architecture is the one given with these tasks.
    """

    head: TaskHeads  # type: ignore[assignment]

    def __init__(self, architecture: Architecture, tasks: Sequence[Columns]) -> None:
        architecture = architecture.model_copy(update={"tasks": tuple(tasks)})
        super().__init__(architecture, max(end for _, end in tasks))
        width = architecture.width
        channels = getattr(self.backbone, "num_features", 0)
        if not channels or not hasattr(self.backbone, "forward_features"):
            raise ValueError(f"{architecture.backbone} has no last feature map to make tokens of")
        self.channels = int(channels)
        if _is_convit(self.backbone) and width == self.channels:
            blocks: Any = self.backbone.blocks
            self.project = nn.Sequential()
            self.attention = TaskAttention(width, blocks[0].attn.num_heads, _OWN_MLP)
        else:
            self.project = nn.Sequential(nn.Linear(self.channels, width), nn.LayerNorm(width))
            self.attention = TaskAttention(width)
        self.backbone = PatchTokens(self.backbone, self.channels)
        self.tokens = nn.ParameterList(nn.Parameter(0.02 * torch.randn(width)) for _ in tasks)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in tasks)
        forensic = self.embedding_size - width
        self.embedding_size = len(tasks) * width + forensic
        self.head = TaskHeads(width, forensic, tasks)
        self.pseudo_head = nn.Linear(self.embedding_size, 1)
        self.divergence: nn.Linear | None = None

    def embed(self, seen: Tensor, features: Tensor) -> Tensor:
        """Return float32 [M, t * D + forensic] from rows [M, T * C] and raw forensic features [M, F]."""
        patches = self.project(seen.reshape(seen.shape[0], -1, self.channels))
        answers = self.attention(torch.stack(list(self.tokens)), patches).unbind(1)
        parts = [norm(answer) for norm, answer in zip(self.norms, answers, strict=True)]
        return torch.cat(parts if self.forensics is None else [*parts, self.evidence(features)], 1)

    def newest(self, embedding: Tensor) -> Tensor:
        """Return the newest task's part of embeddings, float32 [M, D]."""
        width = self.architecture.width
        return embedding[:, (len(self.tokens) - 1) * width : len(self.tokens) * width]


def _is_convit(backbone: nn.Module) -> bool:
    return hasattr(backbone, "blocks") and hasattr(backbone, "local_up_to_layer")


def make_network(architecture: Architecture, classes: int) -> Network:
    """Return a network of this architecture, of task tokens where it has tasks, with random weights.

    classes: the number of its logits. Raises ValueError where the tasks speak for another number.
    """
    if architecture.tasks is None:
        return Network(architecture, classes)
    if (speaks := max(end for _, end in architecture.tasks)) != classes:
        raise ValueError(f"the tasks speak for {speaks} logits, and there are {classes} classes")
    return TaskTokens(architecture, architecture.tasks)


def grow_network(old: TaskTokens, tasks: Sequence[Columns]) -> TaskTokens:
    """Return the old network with a token, a norm and a classifier for each further task, on its device.

    Old logits stay as they are.
    """
    network = TaskTokens(old.architecture, tasks)
    before = {k: v for k, v in old.state_dict().items() if not k.startswith("pseudo_head.")}
    network.load_state_dict(before, strict=False)
    known = len(old.tokens) * old.architecture.width
    forensic = old.embedding_size - known
    with torch.no_grad():
        weight = torch.zeros_like(network.pseudo_head.weight)
        weight[:, :known] = old.pseudo_head.weight[:, :known]
        weight[:, weight.shape[1] - forensic :] = old.pseudo_head.weight[:, known:]
        network.pseudo_head.weight.copy_(weight)
        network.pseudo_head.bias.copy_(old.pseudo_head.bias)
    return network.to(next(old.parameters()).device)
