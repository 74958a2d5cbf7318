"""Batch normalisation that stays as it is while the rest of a network learns: affine part and statistics."""

from timm.layers.norm_act import freeze_batch_norm_2d, unfreeze_batch_norm_2d

from detector.model.network import Network


def fix(network: Network) -> None:
    """Let the backbone normalise as in evaluation mode, whatever its mode, with nothing to be trained."""
    network.backbone = freeze_batch_norm_2d(network.backbone)  # type: ignore[no-untyped-call]


def release(network: Network) -> None:
    """Undo `fix`; nothing has changed meanwhile."""
    network.backbone = unfreeze_batch_norm_2d(network.backbone)  # type: ignore[no-untyped-call]
