"""What is pre-trained: a release's network with a projection beside it, and the file that is made of it."""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from detector.model.network import Network
from detector.model.scores.score import NetworkOutput
from detector.release.architecture import Architecture
from ingest.durable import write_durably
from updater.benchmark.learners.supervised_contrast import supervised_contrast
from updater.pretraining.batches import Batch

_PROJECTED = 32
_HEADS = ("head.", "pseudo_head.")


class Pretraining(nn.Module):
    """A network, the projection that its embedding is contrasted in, and how long they were trained."""

    trained_s: Tensor

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.network = Network(architecture, 1)
        self.project = nn.Linear(self.network.embedding_size, _PROJECTED)
        self.register_buffer("trained_s", torch.zeros(()))

    def output(self, images: Tensor) -> NetworkOutput:
        """Return what the network says of each crop alone."""
        output: NetworkOutput = self.network(images, torch.eye(len(images), device=images.device))
        return output

    def loss(self, batch: Batch) -> Tensor:
        """Return the contrast of the draws, and the entropy of "made by some generator", in nats."""
        output = self.output(batch.images)
        generated = (batch.classes > 0).float()
        told = F.binary_cross_entropy_with_logits(output.pseudo_logit, generated)
        return supervised_contrast(self.project(output.embedding), batch.classes) + told


def save_pretrained(path: Path, network: Network) -> None:
    """Write what is below the heads as release 0 begins with it, durably. Raises OSError."""
    state = network.state_dict().items()
    tensors = {name: v.cpu().contiguous() for name, v in state if not name.startswith(_HEADS)}
    write_durably(path, save(tensors, {"architecture": network.architecture.model_dump_json()}))
