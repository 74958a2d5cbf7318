"""One update from its claimed row to a proposal, or to a refusal that says why.

What a candidate is made of lies in updater.candidate; here is the order of the stages, and what
becomes of the run when one of them does not succeed.
"""

import shutil
import threading
from pathlib import Path

import structlog
import torch

from detector.model.backbone import BackboneError
from detector.model.graph import DetectorGraph
from detector.release.artifact import EVALUATION
from ingest.records import PicturePlan
from memory.crops.crop_store import CropsUnavailableError
from memory.held_back import choose_resting
from memory.rehearsal import choose_rehearsal
from memory.store import StoreUnavailableError
from updater.candidate.builder import Workshop, identity, with_features
from updater.candidate.evaluation import evaluated
from updater.candidate.initial_weights import begin, begun
from updater.candidate.parent import load_parent
from updater.candidate.picture import new_branch, with_picture_features
from updater.candidate.plan import CandidateRefusedError, Parent, make_plan
from updater.data.training_data import PicturesLackingError, load_splits
from updater.deploy_client import DeployUnavailableError
from updater.lease import LeaseHeartbeat, UpdateInterruptedError
from updater.metrics import timed
from updater.progress import Progress
from updater.records import Candidate, UpdateRun
from updater.runs import Lease, LeaseLostError
from updater.schedule import known_label, labelled_since, newest_label
from updater.services import Parts
from updater.training.crop_rows import DeviceMemoryError
from updater.training.processes import PeerLostError
from updater.training.weights import WeightsError

RELEASES = "releases"
FROZEN = "frozen"
"""what frozen models made of pictures, in any run"""
NO_MEMORY = (
    "the GPU has too little memory for this update: set FORGEWATCH_UPDATER_BATCH lower (unset it is 64),"
    " or FORGEWATCH_UPDATER_DEVICE=cpu"
)
FOLDERS_KEPT = 3
"""The newest runs' folders stay, so that the evidence of a refusal can be looked at."""

log = structlog.get_logger()


def work(parts: Parts, lease: Lease, stop: threading.Event, show: Progress) -> UpdateRun:
    """Carry a claimed run to its end, or as far as it goes; returns its row as it is then.

    The row ends as proposed, refused or failed. It goes back to the queue, with all that was done
    kept in its folder, where `stop` was set or where deploy or the memory cannot be reached now.
    Raises LeaseLostError where another runner has it: then nothing more was written. Raises PeerLostError
    where another process of its training died: the lease runs out, and the death counts as this runner's.
    """
    table = parts.table
    with LeaseHeartbeat(table, lease, parts.settings.lease_s, stop, show) as heartbeat:
        try:
            candidate = _candidate(parts, lease, heartbeat)
        except (LeaseLostError, PeerLostError):
            raise
        except UpdateInterruptedError:
            return table.release(lease)
        except (DeployUnavailableError, StoreUnavailableError, CropsUnavailableError) as error:
            log.warning("update waits", run=lease.run, error=str(error))
            return table.release(lease, error=f"waits: {error}")
        except (
            CandidateRefusedError,
            BackboneError,
            WeightsError,
            PicturesLackingError,
        ) as error:
            log.info("update refused", run=lease.run, reason=str(error))
            return table.finish(lease, "refused", error=str(error))
        except (torch.OutOfMemoryError, DeviceMemoryError):
            log.exception("update failed", run=lease.run)
            return table.finish(lease, "failed", error=NO_MEMORY)
        except Exception as error:  # whatever training raises ends this run, not the process
            log.exception("update failed", run=lease.run)
            return table.finish(lease, "failed", error=f"{type(error).__name__}: {error}")
        ended = table.finish(lease, "proposed", candidate=candidate.digest)
    log.info("update proposed", run=lease.run, candidate=candidate.digest)
    return ended


def _candidate(parts: Parts, lease: Lease, heartbeat: LeaseHeartbeat) -> Candidate:
    settings, report_at = parts.settings, heartbeat.report
    torch.set_num_threads(settings.threads)
    _refuse_if_nothing_is_new(parts, lease)
    with timed("load"):
        live = parts.deploy.live_digest()
        _forget_old_folders(settings.work_dir, lease.run, live)
        parent = None if live is None else load_parent(parts.deploy.fetch(live, settings.work_dir / RELEASES))
        beginning = begin(settings, parts.memory, parent)
        shown = beginning.picture_plan or _pictures(parent)
        resting = _resting(parts, parent)
        with_clips = settings.scanner_steps > 0
        splits = load_splits(
            parts.store, parts.crops, resting, report_at, picture=shown, with_clips=with_clips
        )
        plan = begun(make_plan(settings, parent, splits), beginning)
    workshop = Workshop(_folder(settings.work_dir, lease.run), identity(plan, lease.run))
    with timed("learn"):
        plan = with_features(plan, report_at)
        branch = new_branch(plan)
        plan = with_picture_features(plan, branch, settings.work_dir / FROZEN, report_at)
        network = workshop.learnt(plan, report_at)
        branch = workshop.pictured(plan, branch, network, report_at)
    with timed("calibrate"):
        calibrated, reference = workshop.calibrated(plan, network, branch, report_at)
    with timed("power"):
        power = workshop.power(plan, network, report_at)
    with timed("export"):
        report_at("export", 0, 1)
        exported = workshop.exported(plan, DetectorGraph(network, calibrated.gate, reference, branch))
    with timed("localize"):
        localizer = workshop.localized(plan, report_at)
    with timed("scan"):
        scanner = workshop.scanned(plan, report_at)
    with timed("evaluate"):
        found = None if scanner is None else scanner.found
        evaluation = evaluated(
            settings, lease.run, workshop, plan, calibrated, exported, power, localizer, found, report_at
        )
    artifact = workshop.sealed(
        plan, calibrated, exported, localizer, None if scanner is None else scanner.contract
    )
    if missed := [gate for gate in evaluation.gates if not gate.holds]:
        raise CandidateRefusedError(
            "; ".join(f"{gate.name}: {gate.said('.4g')}, bound {gate.bound:.4g}" for gate in missed)
        )
    candidate = Candidate(
        digest=artifact.digest,
        evaluation_digest=artifact.manifest.files[EVALUATION],
        parent=artifact.manifest.parent,
        update=lease.run,
        classes=plan.classes,
        gates=evaluation.gates,
    )
    with timed("propose"):
        report_at("propose", 0, 1)
        parts.deploy.put(artifact)
        # Deploy knows nothing of leases: a runner that was silent too long must not get this far.
        heartbeat.assert_held()
        parts.deploy.propose(candidate)
    return candidate


def _refuse_if_nothing_is_new(parts: Parts, lease: Lease) -> None:
    # Kept before anything else can go wrong: a run that fails must not be asked for again by the
    # same labels.
    learnt = parts.table.labels_seen(by=("proposed", "refused"))
    parts.table.saw_labels(lease, newest_label(parts.store))
    run = parts.table.get(lease.run)
    if run.trigger == "scheduled" and not labelled_since(parts.store, learnt):
        raise CandidateRefusedError("nothing was labelled since the last update")


def _resting(parts: Parts, parent: Parent | None) -> frozenset[str]:
    """Return the ids of what is neither learnt nor measured on for want of a place in a budget.

    That is what the live release has learnt and the rehearsal budget has no place for, and held-back items
    over theirs. Of a release that no run here proposed, nothing is known to be learnt: all of it is trained
    on.
    """
    unmeasured = choose_resting(parts.store, parts.memory.held_back_budget)
    if parent is None:
        return unmeasured
    learnt = known_label(parts.store, parts.table.labels_learnt(parent.artifact.digest))
    budget, max_per_source = parts.memory.rehearsal_budget, parts.memory.max_per_source
    choice = choose_rehearsal(parts.store, parent.artifact.manifest.classes, learnt, budget, max_per_source)
    log.info("rehearsal chosen", kept=dict(choice.kept), resting=len(choice.resting))
    return choice.resting | unmeasured


def _pictures(parent: Parent | None) -> PicturePlan | None:
    return parent.artifact.manifest.contract.picture_plan if parent else None


def _folder(work_dir: Path, run: int) -> Path:
    return work_dir / f"run-{run}"


def _forget_old_folders(work_dir: Path, run: int, live: str | None) -> None:
    for path in (work_dir / RELEASES).glob("*"):
        if path.name != live:
            shutil.rmtree(path, ignore_errors=True)
    for path in work_dir.glob("run-*"):
        number = path.name.removeprefix("run-")
        if number.isdecimal() and int(number) <= run - FOLDERS_KEPT:
            shutil.rmtree(path, ignore_errors=True)
