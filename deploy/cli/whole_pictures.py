"""What the benchmarks are told of a model that looks at whole pictures, and the Setup with it."""

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from deploy.cli.output import UsageError

if TYPE_CHECKING:
    from deploy.cli.learning import Learning
    from updater.benchmark.continual.setup import Setup


def with_pictures(setup: "Setup", chosen: "Learning") -> "Setup":
    """The setup with the model that is named, where one is. Raises UsageError and WeightsError."""
    from detector.model.backbone import BackboneError, shown_to
    from ingest.records import Interpolation, PicturePlan
    from updater.training.frozen import frozen_branch, picture_of
    from updater.training.weights import chosen as chosen_weights

    name, side_px = chosen.picture_backbone, chosen.picture_px
    if name is None:
        if chosen.picture_checkpoint is not None:
            raise UsageError("--picture-checkpoint is of a --picture-backbone: name one")
        return setup
    if chosen.calibration_share == 0:
        raise UsageError("--calibration-share 0 leaves nothing to set the share of --picture-backbone by")
    try:
        shown = shown_to(name)
        if shown.interpolation not in get_args(Interpolation):
            raise UsageError(f"--picture-backbone {name} wants pictures resized {shown.interpolation}")
        weights = chosen_weights(name, chosen.picture_checkpoint, chosen.picture_checkpoint is None)
        assert weights is not None
        picture = picture_of(name, side_px, shown, weights)
        frozen_branch(picture, weights)  # refused before any data is read
    except BackboneError as error:
        raise UsageError(f"--picture-backbone {error}") from error
    return replace(
        setup,
        architecture=setup.architecture.model_copy(update={"picture": picture}),
        picture_plan=PicturePlan(width_px=side_px, height_px=side_px, interpolation=shown.interpolation),
        picture_from=weights,
    )
