"""What begins with a release: weights of release 0's backbone, and a model that looks at whole pictures."""

from dataclasses import dataclass, replace

from detector.model.backbone import shown_to
from detector.release.architecture import NO_BACKBONE, Picture
from ingest.records import PicturePlan
from memory.settings import MemorySettings
from updater.candidate.plan import CandidateRefusedError, Parent, Plan
from updater.settings import UpdaterSettings
from updater.training.frozen import picture_of
from updater.training.weights import Weights, chosen


@dataclass(frozen=True)
class Beginning:
    """Of everything that is None nothing is given: a network begins at random, and sees crops alone."""

    weights: Weights | None = None
    picture: Picture | None = None
    picture_plan: PicturePlan | None = None
    picture_weights: Weights | None = None


def begin(settings: UpdaterSettings, memory: MemorySettings, parent: Parent | None = None) -> Beginning:
    """Read, or fetch, what the settings name.

    After a parent nothing begins but the model on whole pictures, and that where the parent has none.

    Raises WeightsError, BackboneError, and CandidateRefusedError where the memory keeps no pictures as the
    model is to be shown them.
    """
    weights = None
    if parent is None:
        weights = chosen(settings.backbone, settings.checkpoint, settings.pretrained)
    name, plan = settings.picture_backbone, memory.picture_plan
    if name == NO_BACKBONE or (parent is not None and parent.branch is not None):
        return Beginning(weights)
    shown = shown_to(name)
    if plan is None:
        raise CandidateRefusedError(
            f"the memory keeps no pictures for {name}: set FORGEWATCH_MEMORY_PICTURE_PX, and import into"
            " an empty memory, or unset FORGEWATCH_UPDATER_PICTURE_BACKBONE"
        )
    if plan.interpolation != shown.interpolation:
        raise CandidateRefusedError(
            f"{name} wants pictures resized {shown.interpolation}, and the memory keeps them"
            f" {plan.interpolation}: set FORGEWATCH_MEMORY_PICTURE_INTERPOLATION, and import"
            " into an empty memory"
        )
    checkpoint = settings.picture_checkpoint
    of_picture = chosen(name, checkpoint, checkpoint is None)
    assert of_picture is not None
    return Beginning(weights, picture_of(name, plan.width_px, shown, of_picture), plan, of_picture)


def begun(plan: Plan, beginning: Beginning) -> Plan:
    """Return the plan of a release that begins so."""
    picture = beginning.picture or plan.architecture.picture
    return replace(
        plan,
        architecture=plan.architecture.model_copy(update={"picture": picture}),
        picture_plan=beginning.picture_plan or plan.picture_plan,
        picture_from=beginning.picture_weights,
        start_from=beginning.weights,
    )
