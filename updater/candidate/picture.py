"""What a candidate begins with: release 0's weights, and a frozen model on whole pictures with its vote."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from detector.model.backbone import shown_to
from detector.model.network import Network, PictureBranch
from detector.release.manifest import NO_BACKBONE
from ingest.records import PicturePlan
from memory.settings import MemorySettings
from updater.candidate.gate_inputs import output_of
from updater.candidate.plan import CandidateRefusedError, Parent, Plan
from updater.data.training_data import LabelledCrops
from updater.experts.look import Expert
from updater.progress import Progress
from updater.settings import TIMM, UpdaterSettings
from updater.training.frozen import frozen_branch, frozen_rows, picture_of, vote_beside
from updater.training.weights import chosen


def pictures_shown(
    settings: UpdaterSettings, memory: MemorySettings, parent: Parent | None, experts: Sequence[Expert] = ()
) -> PicturePlan | None:
    """Return how whole pictures are shown to what looks at them; None where nothing does.

    It is the parent's, or what the memory keeps for the model that is set, or for an expert. Raises
    BackboneError, and CandidateRefusedError where the memory keeps no pictures as they are to be shown.
    """
    name, plan = settings.picture_backbone, memory.picture_plan
    if parent is not None and (of_parent := parent.artifact.manifest.contract.picture_plan) is not None:
        return of_parent
    if name == NO_BACKBONE:
        lookers = [expert.contract.name for expert in experts if expert.contract.input == "resize"]
        if lookers and plan is None:
            raise CandidateRefusedError(
                f"the memory keeps no pictures for expert {lookers[0]}: set FORGEWATCH_MEMORY_PICTURE_PX, and"
                f" import into an empty memory, or forgewatch expert remove {lookers[0]}"
            )
        return plan if lookers else None
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
    return plan


def with_initial_weights(plan: Plan, settings: UpdaterSettings, shown: PicturePlan | None) -> Plan:
    """Return the plan with the weights that begin with it, read or fetched.

    shown: as of `pictures_shown`. After a parent nothing begins but the model on whole pictures, and that
    where the parent has none. Raises WeightsError.
    """
    if plan.parent is None:
        own = settings.checkpoint
        begun = chosen(settings.backbone, None if own == TIMM else own, own == TIMM)
        plan = replace(plan, start_from=begun)
    sees = plan.architecture.picture is not None or any(e.contract.input == "resize" for e in plan.experts)
    plan = replace(plan, picture_plan=shown if sees else None)
    if shown is None or plan.architecture.picture is not None or settings.picture_backbone == NO_BACKBONE:
        return plan
    name = settings.picture_backbone
    weights = chosen(name, settings.picture_checkpoint, True)
    assert weights is not None
    picture = picture_of(name, shown.width_px, shown_to(name), weights)
    return replace(
        plan,
        architecture=plan.architecture.model_copy(update={"picture": picture}),
        picture_plan=shown,
        picture_from=weights,
    )


def with_picture_features(plan: Plan, branch: PictureBranch | None, kept: Path, progress: Progress) -> Plan:
    """Return the plan with what the branch's model makes of the pictures to train and to calibrate on.

    kept: the folder of what earlier updates computed.
    """
    if branch is None:
        return plan

    def seen(items: LabelledCrops, stage: str) -> LabelledCrops:
        assert items.pictures is not None
        rows = frozen_rows(branch, items.pictures, plan.device, kept, partial(progress, stage))
        return replace(items, picture_features=rows)

    splits = plan.splits
    train, calibration = seen(splits.train, "pictures"), seen(splits.calibration, "pictures held back")
    return replace(plan, splits=replace(splits, train=train, calibration=calibration))


def new_branch(plan: Plan) -> PictureBranch | None:
    """Return the plan's branch with a head that says nothing yet; None where the plan has no branch.

    Raises WeightsError where release 0's weights are not those of the model.
    """
    picture, parent = plan.architecture.picture, plan.parent
    if picture is None:
        return None
    if plan.picture_from is not None:
        return frozen_branch(picture, plan.picture_from, len(plan.classes))
    assert parent is not None
    assert parent.branch is not None
    branch = PictureBranch(picture, len(plan.classes))
    branch.backbone.load_state_dict(parent.branch.backbone.state_dict())
    return branch


def fit_head(plan: Plan, branch: PictureBranch, network: Network, progress: Progress) -> None:
    """Give the branch a vote fitted to the training items, with a share fitted to those held back.

    The items have the branch's picture features.
    """
    held_back = plan.splits.calibration
    logits = output_of(network, held_back, plan.device, "share of the vote", progress).logits
    vote = vote_beside(logits, plan.splits.train, held_back, plan.classes)
    branch.head.load_state_dict({"weight": vote.weight, "bias": vote.bias})
