"""The second graph of a candidate, which says where a picture is forged: trained anew, or its parent's."""

from functools import partial
from pathlib import Path

import numpy as np

from detector.release.artifact import LOCALIZER
from detector.release.crop_graphs import CELL_PX, OF_PICTURE, MapContract
from detector.release.tensors import CROPS, Request
from memory.records import REAL
from updater.candidate.draft import Draft, put_graph, stage, take_graph_over
from updater.candidate.plan import CandidatePlan, CandidateRefusedError
from updater.data.training_data import LabelledCrops
from updater.localizer.calibrate import THRESHOLD, calibrate, reals_marked
from updater.localizer.train import train_localizer

_PROBE_PICTURES, _PROBE_CROPS = 3, 2


@stage("localize", "localized.json", MapContract)
def build_localizer(draft: Draft, plan: CandidatePlan) -> MapContract | None:
    """Put a localizer's files into the artifact and return its contract; None for a candidate without.

    It is trained where the plan has steps for it, on the train split's reals and pseudo-forgeries of them,
    and calibrated on the calibration split's; how many reals it marks is measured on the test split's. Else
    it is the parent's, where that has one.

    Raises CandidateRefusedError where crops are no whole cells, and detector.model.export.ExportError.
    """
    if not plan.localizer_steps:
        return _taken_over(plan, draft.artifact)
    if plan.crop_plan.crop_px % CELL_PX:
        raise CandidateRefusedError(
            f"crops of {plan.crop_plan.crop_px} px have no whole cells of {CELL_PX} px: set"
            " FORGEWATCH_UPDATER_LOCALIZER_STEPS=0"
        )
    network = train_localizer(
        _reals(plan.splits.train),
        None,
        without=plan.without,
        seed=plan.seed,
        device=plan.device,
        steps=plan.localizer_steps,
        progress=partial(draft.progress, "localizer"),
    )
    held, unseen = _reals(plan.splits.calibration), _reals(plan.splits.test)
    graph = calibrate(
        network,
        held,
        None,
        without=plan.without,
        seed=plan.seed,
        progress=partial(draft.progress, "calibrate the localizer"),
    )
    marked = reals_marked(graph, unseen, partial(draft.progress, "map held-back reals"))
    probe = _request(held.take(range(min(_PROBE_PICTURES, len(held)))))
    alone = _request(held.take([0]))
    contract = MapContract(
        crop_px=plan.crop_plan.crop_px, threshold=THRESHOLD, reals_marked=marked, reals=len(unseen)
    )
    return put_graph(draft.artifact, LOCALIZER, graph, network, contract, [probe, alone])


def _taken_over(plan: CandidatePlan, folder: Path) -> MapContract | None:
    if plan.parent is None or plan.parent.artifact.manifest.localizer is None:
        return None
    take_graph_over(folder, LOCALIZER, plan.parent.artifact)
    return plan.parent.artifact.manifest.localizer


def _reals(items: LabelledCrops) -> LabelledCrops:
    return items.take(number for number, family in enumerate(items.families) if family == REAL)


def _request(items: LabelledCrops) -> Request:
    """Return some of the pictures' crops, the first ones of each."""
    rows = [
        np.arange(first, min(end, first + _PROBE_CROPS))
        for first, end in zip(items.starts, items.starts[1:], strict=False)
    ]
    of_picture = np.repeat(np.arange(len(items)), [len(row) for row in rows])
    return {CROPS: np.asarray(items.crops[np.concatenate(rows)]), OF_PICTURE: of_picture}
