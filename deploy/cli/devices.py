"""What a command that trains runs on, and what it begins with."""

import logging
from typing import TYPE_CHECKING

from deploy.cli.output import UsageError

if TYPE_CHECKING:
    import torch

    from deploy.cli.learning import TrainingOptions
    from detector.release.architecture import Architecture
    from updater.training.weights import Weights


def device_of(name: str) -> "torch.device":
    """The device of that name, or the best one for auto. Raises UsageError."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name} is none: choose of cpu, cuda, auto") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: there are {torch.cuda.device_count()} GPUs that torch can use")
    return found


def weights_of(chosen: "TrainingOptions", architecture: "Architecture") -> "Weights | None":
    """What training begins with; None for weights drawn at random. Raises UsageError."""
    from updater.training.weights import chosen as chosen_weights

    if chosen.checkpoint and chosen.pretrained:
        raise UsageError("--checkpoint and --pretrained are two ways to begin: choose one")
    # It tells of each try to reach the hub; what came of them is told once.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    return chosen_weights(architecture.backbone, chosen.checkpoint, chosen.pretrained)
