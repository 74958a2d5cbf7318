"""What the benchmarks are told of a model that looks at whole pictures, and the Setup with it."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from deploy.cli.output import UsageError

if TYPE_CHECKING:
    from deploy.cli.learning import Learning
    from updater.benchmark.continual.setup import Setup
    from updater.training.tuning import Tuning


def with_pictures(setup: "Setup", chosen: "Learning") -> "Setup":
    """The setup with the model that is named, where one is.

    Raises UsageError, WeightsError and TuningError.
    """
    from detector.model.backbone import BackboneError, shown_to
    from ingest.records import Interpolation, PicturePlan
    from updater.training.frozen import frozen_branch, picture_of
    from updater.training.tuning import check
    from updater.training.weights import chosen as chosen_weights

    tuning = _tuning(chosen)
    name, side_px = chosen.picture_backbone, chosen.picture_px
    if (chosen.picture_checkpoint is not None) + chosen.picture_pretrained != (name is not None):
        raise UsageError(
            "--picture-backbone needs weights: give it --picture-checkpoint or --picture-pretrained, not"
            " both, and neither without it"
        )
    if name is None:
        return setup
    if chosen.calibration_share == 0:
        raise UsageError("--calibration-share 0 leaves nothing to set the share of --picture-backbone by")
    try:
        shown = shown_to(name)
        how = "none" if chosen.picture_native else shown.interpolation
        if how not in get_args(Interpolation):
            raise UsageError(f"--picture-backbone {name} wants pictures resized {shown.interpolation}")
        weights = chosen_weights(name, chosen.picture_checkpoint, chosen.picture_pretrained)
        assert weights is not None
        picture = picture_of(name, side_px, shown, weights)
        branch = frozen_branch(picture, weights)  # before any data is read
    except BackboneError as error:
        raise UsageError(f"--picture-backbone {error}") from error
    if tuning is not None:
        check(branch, tuning)
        picture = picture.model_copy(update={"tuned": tuning.what})
    return replace(
        setup,
        architecture=setup.architecture.model_copy(update={"picture": picture}),
        picture_plan=PicturePlan(width_px=side_px, height_px=side_px, interpolation=how),
        picture_from=weights,
        picture_tuning=tuning,
    )


def _tuning(chosen: "Learning") -> "Tuning | None":
    """What of the model is trained further. Raises UsageError."""
    from pydantic import TypeAdapter, ValidationError

    from updater.settings import Tune
    from updater.training.tuning import Tuning

    what = chosen.picture_tune
    try:
        TypeAdapter(Tune).validate_python(what)
    except ValidationError as error:
        raise UsageError(
            f"--picture-tune {what!r} is not known: choose of none, whole, last-N, adapters"
        ) from error
    for option, value in (("epochs", chosen.picture_epochs), ("rate", chosen.picture_rate)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"--picture-{option} {value:g}: it has to be above 0")
    tuning = Tuning.of(what, chosen.picture_epochs, chosen.picture_rate, chosen.batch)
    if tuning is not None and chosen.picture_backbone is None:
        raise UsageError("--picture-tune is of a --picture-backbone: name one")
    return tuning
