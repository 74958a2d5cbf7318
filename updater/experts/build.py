"""An expert of a checkpoint: preprocessing, a timm network, and its own real/fake head."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from detector.model.backbone import make_backbone, shown_to
from detector.model.export import ExportError, prove_equal, run, write_onnx
from detector.model.network import PlainFrontEnd
from detector.release.artifact import sha256_of
from detector.release.experts import LOGIT, PICTURES, ExpertContract
from detector.release.manifest import Channels, Deviations
from updater.experts.check import ExpertError, require_finite, require_small
from updater.training.weights import Weights, put_backbone, read_weights

INSIDE = Path("inside")
"""as a head: the one in the checkpoint"""
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is to be read; None follows from its own metadata, or from timm."""

    checkpoint: Path
    head: Path = INSIDE
    architecture: str | None = None
    px: int | None = None
    """side of the square that the network sees; None: as large as what the expert is shown"""
    mean: Channels | None = None
    """levels of 0..255 that it is shown as 0"""
    deviation: Deviations | None = None
    """levels that it is shown as 1"""
    fake_logit: Literal[0, 1] = 1
    """which of two logits is that of fakes; of a single logit: 1 where positive means fake, 0 where real"""

    @property
    def licence(self) -> str | None:
        """The checkpoint's own statement of its licence. Raises ExpertError and WeightsError."""
        return _read(self.checkpoint).licence


class ExpertNetwork(nn.Module):
    """Pictures, uint8 [N, S, S, 3] → {"logit": float32 [N]}, positive means fake. It stays as it is."""

    resize: Tensor | None

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        front: PlainFrontEnd,
        resize: Tensor | None,
        fake_logit: int,
    ) -> None:
        """resize: float32 [seen, S], which resizes rows and columns; None: pictures are seen as they are."""
        super().__init__()
        self.backbone, self.head, self.front, self.fake_logit = backbone, head, front, fake_logit
        self.register_buffer("resize", resize, persistent=False)
        self.eval().requires_grad_(False)

    def forward(self, pictures: Tensor) -> dict[str, Tensor]:
        images = pictures.permute(0, 3, 1, 2).float()
        if self.resize is not None:
            images = (self.resize @ images @ self.resize.T).clamp(0, 255)
        logits: Tensor = self.head(self.backbone(self.front(images)))
        sign = 1.0 if self.fake_logit else -1.0
        return {LOGIT: sign * (logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0.0))}


def expert_network(recipe: Layout, side_px: int) -> tuple[ExpertNetwork, Weights]:
    """Return the network of a recipe for pictures of this side, and its checkpoint.

    Raises ExpertError, WeightsError and BackboneError: one line each.
    """
    weights, described = _read(recipe.checkpoint), _metadata(recipe.checkpoint)
    name = recipe.architecture or described.get("architecture")
    if name is None:
        raise ExpertError(f"{recipe.checkpoint} does not name its network: name a timm model")
    seen_px = recipe.px or _px(recipe.checkpoint, described.get("px", str(side_px)))
    normalisation = shown_to(name)
    mean, deviation = recipe.mean or normalisation.mean, recipe.deviation or normalisation.deviation
    backbone, width = make_backbone(name, 3, seen_px)
    state = {key.removeprefix("module."): value for key, value in weights.tensors.items()}
    if recipe.head == INSIDE:
        prefix = classifier_of(backbone)
        of_head = recipe.checkpoint, {k: v for k, v in state.items() if k.startswith(prefix)}
        state = {key: value for key, value in state.items() if not key.startswith(prefix)}
    else:
        of_head = recipe.head, dict(_read(recipe.head).tensors)
    put_backbone(backbone, name, seen_px, Weights(weights.origin, state))
    head = _head(*of_head, width)
    resize = None if seen_px == side_px else _resizing(side_px, seen_px, normalisation.interpolation)
    return ExpertNetwork(backbone, head, PlainFrontEnd(mean, deviation), resize, recipe.fake_logit), weights


def _px(checkpoint: Path, stated: str) -> int:
    if not stated.isdecimal() or not 16 <= int(stated) <= 1024:
        raise ExpertError(f"{checkpoint} says that it sees {stated[:20]} px: give 16 to 1024 with --px")
    return int(stated)


def _resizing(side_px: int, seen_px: int, interpolation: str) -> Tensor:
    """Return the matrix [seen, S] of an antialiased resize, which no exporter knows, of one side."""
    mode = "bicubic" if interpolation == "bicubic" else "bilinear"
    sides = F.interpolate(torch.eye(side_px)[None, None], (seen_px, side_px), mode=mode, antialias=True)
    return sides[0, 0]


def build(recipe: Layout, contract: ExpertContract, path: Path) -> ExpertContract:
    """Write the recipe's network to path as ONNX, proven equal to torch's output; return its contract.

    contract: of which digest and checkpoint are replaced. Raises what `expert_network` raises.
    """
    network, weights = expert_network(recipe, contract.side_px)
    requests = proof_requests(contract.side_px)
    require_finite(recipe.checkpoint, run(network, requests[0]))
    try:
        write_onnx(network, contract.file_inputs, path, contract.file_outputs)
        prove_equal(network, path, contract, requests)
    except ExportError as error:
        raise ExpertError(f"{recipe.checkpoint.name} differs between PyTorch and ONNX ({error})") from error
    require_small(recipe.checkpoint, path)
    described = weights.description
    if recipe.head != INSIDE:
        described += f", head {recipe.head.name} (SHA-256 {sha256_of(recipe.head)[:12]})"
    return contract.model_copy(update={"digest": sha256_of(path), "checkpoint": described})


def proof_requests(side_px: int) -> list[dict[str, Any]]:
    """Return pictures that an expert is proven on: noise, black, white, and grey with little noise."""
    rng = np.random.default_rng(0)
    shape = (side_px, side_px, 3)
    noise = rng.integers(0, 256, (2, *shape), np.uint8)
    flat = np.stack([np.full(shape, level, np.uint8) for level in (0, 255)])
    calm = rng.integers(120, 136, (1, *shape), np.uint8)
    return [{PICTURES: np.concatenate([noise, flat, calm])}, {PICTURES: noise[:1]}]


def _read(path: Path) -> Weights:
    if path.suffix.lower() in _PICKLES:
        raise ExpertError(
            f"{path} is a pickle, which runs code as it is read; make safetensors of it: python -c 'import"
            ' torch; from safetensors.torch import save_file; s = torch.load("IN.pth", weights_only=True);'
            ' s = s.get("state_dict", s.get("model", s)); save_file({k: v.contiguous() for k, v in s.items()'
            ' if isinstance(v, torch.Tensor)}, "OUT.safetensors")\''
        )
    return read_weights(path)


def _metadata(path: Path) -> Mapping[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata() or {})


def classifier_of(backbone: nn.Module) -> str:
    """Return the prefix of the names of a timm model's classifier."""
    described: Any = backbone.pretrained_cfg
    name = described.get("classifier")
    return f"{name if isinstance(name, str) else 'head'}."


def _head(path: Path, state: Mapping[str, Tensor], width: int) -> nn.Linear:
    """Return a linear head of one or two logits from the tensors whose names end in weight and bias."""
    weight = _ending(state, "weight")
    if weight is None:
        raise ExpertError(f"{path} has no head: give the file of one with --head")
    weight = weight.reshape(len(weight), -1) if weight.ndim != 1 else weight[None]
    if len(weight) > 2:
        raise ExpertError(
            f"{path} has a head of {len(weight)} classes: an expert has one or two logits, real and fake"
        )
    if weight.shape[1] != width:
        raise ExpertError(
            f"{path} has a head on {weight.shape[1]} features, and the network gives {width}: name the"
            " network that it is of"
        )
    bias = _ending(state, "bias")
    head = nn.Linear(width, len(weight))
    head.load_state_dict(
        {
            "weight": weight.float(),
            "bias": torch.zeros(len(weight)) if bias is None else bias.reshape(-1).float(),
        }
    )
    return head


def _ending(state: Mapping[str, Tensor], kind: str) -> Tensor | None:
    named = [value for name, value in state.items() if name.rpartition(".")[2] == kind]
    return named[0] if len(named) == 1 else None
