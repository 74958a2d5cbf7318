"""One update from its claimed row to a proposal, with findings or without, or to a refusal that says why.

What a candidate is made of lies in updater.candidate; here is how a run is held while that is made, and what
becomes of it when something does not succeed.
"""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Self

import structlog
import torch
from sqlalchemy.exc import SQLAlchemyError

from detector.model.backbone import BackboneError
from detector.release.artifact import EVALUATION, seal
from detector.release.signature import check_key, sign
from memory.crops.crop_store import CropsUnavailableError
from memory.database import cause_of
from memory.rehearsal import choose_rehearsal, choose_resting
from memory.store import StoreUnavailableError
from updater.candidate.builder import build
from updater.candidate.draft import Draft, identity_of
from updater.candidate.plan import (
    CandidateRefusedError,
    Parent,
    initial_weights,
    load_parent,
    make_plan,
    picture_plan,
)
from updater.data.training_data import PicturesLackingError, load_splits
from updater.deploy_client import DeployUnavailableError, candidate_of
from updater.experts.check import ExpertError
from updater.experts.registry import ExpertRegistry
from updater.gate_records import said_of_findings
from updater.metrics import PROGRESS, time_stage
from updater.progress import Progress
from updater.records import Candidate, Evaluation, RunState, UpdateRun
from updater.runs import Lease, LeaseLostError, RunTable
from updater.schedule import known_label, labelled_since, newest_label
from updater.services import UpdaterServices
from updater.training.crop_rows import DeviceMemoryError
from updater.training.processes import PeerLostError
from updater.training.weights import WeightsError

RELEASES = "releases"
NO_MEMORY = (
    "the GPU has too little memory for this update: set FORGEWATCH_UPDATER_BATCH lower (unset it is 64),"
    " or FORGEWATCH_UPDATER_DEVICE=cpu"
)
FOLDERS_KEPT = 3
"""The newest runs' folders stay, so that the evidence of a refusal can be looked at."""
BEATS_A_LEASE = 4
"""at least"""
MAX_PERIOD_S = 1.0
"""between two writes: bars move, and a stage is seen while it lasts"""

log = structlog.get_logger()


class UpdateInterruptedError(Exception):
    """The process was asked to end; the run goes back to the queue as far as it has come."""


class LeaseHeartbeat:
    """Renews a lease until it is left, and tells row, metrics and terminal how far the work is.

    Use it as a context around the work. Training calls report() many times a second; the row is written by a
    thread of its own, so that a stage which reports nothing for minutes does not lose the lease either.
    stop is set by whoever wants this process to end. show gets every report as it comes.
    """

    def __init__(
        self, table: RunTable, lease: Lease, lease_s: float, stop: threading.Event, show: Progress
    ) -> None:
        self._table = table
        self._lease = lease
        self._period_s = min(lease_s / BEATS_A_LEASE, MAX_PERIOD_S)
        self._stop = stop
        self._show = show
        self._at = ("start", 0, 0)
        self._lost: LeaseLostError | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        PROGRESS.set(0)

    def report(self, stage: str, done: int, total: int) -> None:
        """Say where the work stands. Raises LeaseLostError or UpdateInterruptedError: the work ends here."""
        self._at = (stage, done, total)
        PROGRESS.set(done / total if total else 0)
        self._show(stage, done, total)
        self.check()

    def check(self) -> None:
        """Raise LeaseLostError where another took over, UpdateInterruptedError where this one is to end."""
        if self._lost is not None:
            raise self._lost
        if self._stop.is_set():
            raise UpdateInterruptedError("the process was asked to end")

    def assert_held(self) -> None:
        """Ask the database itself whether the lease still holds: before an act that a zombie must not do.

        Raises LeaseLostError.
        """
        self._table.heartbeat(self._lease, *self._at)

    def _beat(self) -> None:
        while not self._left.wait(self._period_s):
            try:
                self._table.heartbeat(self._lease, *self._at)
            except LeaseLostError as error:
                self._lost = error
                return
            except SQLAlchemyError as error:
                # The database may come back within the lease; if not, the successor's token decides.
                log.warning("lease not renewed, trying again", run=self._lease.run, error=cause_of(error))


def work(services: UpdaterServices, lease: Lease, stop: threading.Event, show: Progress) -> UpdateRun:
    """Carry a claimed run to its end, or as far as it goes; returns its row as it is then.

    The row ends as proposed, with findings or without, as refused or failed. It goes back to the queue, with
    all that was done kept in its folder, where `stop` was set or where deploy, the memory or the table cannot
    be reached now. Raises LeaseLostError where another runner has it: then nothing more was written. Raises
    PeerLostError where another process of its training died: the lease runs out, and the death counts as this
    runner's.
    """
    table = services.table
    with LeaseHeartbeat(table, lease, services.settings.lease_s, stop, show) as heartbeat:
        try:
            candidate = _candidate(services, lease, heartbeat)
        except (LeaseLostError, PeerLostError):
            raise
        except UpdateInterruptedError:
            return table.release(lease)
        except (DeployUnavailableError, StoreUnavailableError, CropsUnavailableError) as error:
            log.warning("update waits", run=lease.run, error=str(error))
            return table.release(lease, error=f"waits: {error}")
        except SQLAlchemyError as error:
            log.warning("update waits", run=lease.run, error=cause_of(error))
            return table.release(lease, error=f"waits: the updater's database failed: {cause_of(error)}")
        except (
            CandidateRefusedError,
            BackboneError,
            WeightsError,
            ExpertError,
            PicturesLackingError,
        ) as error:
            log.info("update refused", run=lease.run, reason=str(error))
            return table.finish(lease, "refused", error=str(error))
        except (torch.OutOfMemoryError, DeviceMemoryError):
            log.exception("update failed", run=lease.run)
            return table.finish(lease, "failed", error=NO_MEMORY)
        except Exception as error:  # whatever training raises ends this run, not the process
            log.exception("update failed", run=lease.run)
            return table.finish(lease, "failed", error=f"{type(error).__name__}: {cause_of(error)}")
        state: RunState = "proposed with findings" if candidate.findings else "proposed"
        ended = table.finish(
            lease, state, candidate=candidate.digest, error=said_of_findings(candidate.findings) or None
        )
    log.info("update proposed", run=lease.run, candidate=candidate.digest, findings=len(candidate.findings))
    return ended


def _candidate(services: UpdaterServices, lease: Lease, heartbeat: LeaseHeartbeat) -> Candidate:
    settings, report_at = services.settings, heartbeat.report
    torch.set_num_threads(settings.threads)
    if settings.signing_key is not None:
        check_key(settings.signing_key)  # now, and not after hours of training
    _refuse_if_nothing_is_new(services, lease)
    with time_stage("load"):
        live = services.deploy.live_digest()
        _forget_old_folders(settings.work_dir, lease.run, live)
        parent = (
            None if live is None else load_parent(services.deploy.fetch(live, settings.work_dir / RELEASES))
        )
        experts = ExpertRegistry(settings.work_dir).experts()
        whole = picture_plan(services.memory, parent, experts)
        splits = load_splits(
            services.store,
            services.crops,
            _resting(services, parent),
            report_at,
            picture=whole,
            with_clips=settings.scanner_steps > 0,
        )
        start_from = initial_weights(settings) if parent is None else None
        plan = replace(
            make_plan(settings, parent, splits), experts=experts, picture_plan=whole, start_from=start_from
        )
    draft = Draft(settings.work_dir / f"run-{lease.run}", identity_of(plan, lease.run), report_at)
    artifact = seal(draft.artifact, build(draft, plan, settings, lease.run))
    if settings.signing_key is not None:
        sign(artifact, settings.signing_key)
    evaluation = Evaluation.model_validate_json((artifact.folder / EVALUATION).read_bytes())
    candidate = candidate_of(artifact, lease.run, evaluation.gates)
    with time_stage("propose"):
        report_at("propose", 0, 1)
        services.deploy.put(artifact)
        # Deploy knows nothing of leases: a runner that was silent too long must not get this far.
        heartbeat.assert_held()
        services.deploy.propose(candidate)
    return candidate


def _refuse_if_nothing_is_new(services: UpdaterServices, lease: Lease) -> None:
    # Kept before anything else can go wrong: a run that fails must not be asked for again by the
    # same labels.
    learnt = services.table.labels_seen(by=("proposed", "proposed with findings", "refused"))
    services.table.record_newest_label(lease, newest_label(services.store))
    run = services.table.get(lease.run)
    if run.trigger in ("scheduled", "drift") and not labelled_since(services.store, learnt):
        raise CandidateRefusedError("nothing was labelled since the last update")


def _resting(services: UpdaterServices, parent: Parent | None) -> frozenset[str]:
    """Return the ids of items that are neither learnt nor measured on for want of a place in a budget.

    That is what the live release has learnt and the rehearsal budget has no place for, and held-back items
    over theirs. Of a release that no run here proposed, nothing is known to be learnt: all of it is trained
    on.
    """
    unmeasured = choose_resting(services.store, services.memory.held_back_budget)
    # Sums forget nothing, and take no longer for what they hold.
    if parent is None or parent.artifact.manifest.architecture.frozen:
        return unmeasured
    learnt = known_label(services.store, services.table.labels_learnt(parent.artifact.digest))
    classes, budget = parent.artifact.manifest.classes, services.memory.rehearsal_budget
    choice = choose_rehearsal(services.store, classes, learnt, budget)
    log.info("rehearsal chosen", kept=dict(choice.kept), resting=len(choice.resting))
    return choice.resting | unmeasured


def _forget_old_folders(work_dir: Path, run: int, live: str | None) -> None:
    for path in (work_dir / RELEASES).glob("*"):
        if path.name != live:
            shutil.rmtree(path, ignore_errors=True)
    for path in work_dir.glob("run-*"):
        number = path.name.removeprefix("run-")
        if number.isdecimal() and int(number) <= run - FOLDERS_KEPT:
            shutil.rmtree(path, ignore_errors=True)
