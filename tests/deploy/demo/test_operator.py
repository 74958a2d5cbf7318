"""The operator against a real server, and whose settings the updater works by while release 0 is made."""

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
from rich.console import Console

from deploy.access.roles import Person, TokenRequest
from deploy.demo import plan, release_zero
from deploy.demo.operator import Operator, OperatorError
from deploy.demo.release_zero import SEED, updater_by
from deploy.local.processes import free_port, socket_folder
from deploy.local.record import StackRecord, write_environment, write_record
from deploy.local.stack import launch_room
from deploy.local.supervisor import Supervisor, start_supervisor
from deploy.release_records import Approve
from deploy.releases.standing import replay
from deploy.server import releases
from deploy.server.services import Services
from detector.release.artifact import Artifact
from memory.clusters.clustering import keep_clustered
from memory.clusters.review import list_clusters
from memory.records import Exemplar
from memory.rows import NewRow, insert_rows


def unknown(number: int) -> NewRow:
    return NewRow(
        exemplar=Exemplar(
            id=f"media-0-{number}",
            media_digest=f"{number:064x}",
            crops_digest=f"{number:064x}",
            source="camera",
            group=f"media-0-{number}",
            shelf="unknown",
            family=None,
            split=None,
            release=None,
            unknown_score=None,
            received_at=datetime.now(UTC),
        ),
        crop_count=1,
        features=np.random.default_rng(number).normal(size=9).astype(np.float32),
        feature_version="1",
        embedding=None,
        verdict=None,
    )


def test_the_operator_approves_no_release_with_a_broken_gate_and_says_who_is_to_decide() -> None:
    operator = Operator(Console(quiet=True), {})
    gates = [{"state": state} for state in ("holds", "not shown to hold", "broken")]
    waiting = [{"digest": "a" * 64, "state": "proposed with findings", "candidate": {"gates": gates}}]
    with (
        patch.object(Operator, "ask", return_value=waiting),
        patch.object(Operator, "run") as run,
        pytest.raises(OperatorError, match="broken gates, which a person decides on"),
    ):
        operator.approve_newest()
    run.assert_not_called()
    gates.pop()
    with patch.object(Operator, "ask", return_value=waiting), patch.object(Operator, "run") as run:
        operator.approve_newest()
    assert "--because" in run.call_args.args


def test_up_asks_for_no_persons_token_where_a_release_is_live(
    served: str,
    services: Services,
    make_artifact: Callable[..., Artifact],
    propose: Callable[[Artifact], None],
    tmp_path: Path,
) -> None:
    artifact = make_artifact()
    propose(artifact)
    candidate = replay(services.ledger.events()).releases[artifact.digest].candidate
    accept = {finding.name: "known" for finding in candidate.findings}
    wanted = Approve(evaluation_digest=candidate.evaluation_digest, accept=accept, plan="now")
    releases.approve(services, "bea", artifact.digest, wanted)
    root, tokens = Person("root", frozenset({"admin"}), "loopback"), services.access.tokens
    machine = tokens.add(TokenRequest(name="of the stack", role="detector"), root).token
    settings = {
        "FORGEWATCH_DEPLOY_URL": served,
        "FORGEWATCH_DETECTOR_DEPLOY_TOKEN": machine,
        "FORGEWATCH_DETECTOR_METRICS_PORT": "9",
    }
    write_environment(tmp_path / "stack.env", settings)
    with (
        patch("deploy.demo.release_zero.commands.up"),
        patch("deploy.local.commands._scores_by", return_value=True),
    ):
        release_zero.up(tmp_path)
        tokens.add(TokenRequest(name="ada", role="admin"), root)
        release_zero.up(tmp_path)


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_release_0_that_an_earlier_run_kept_is_brought_back_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    for name in ("memory", "updater", "deploy"):
        (tmp_path / "kept" / name).mkdir(parents=True)
        (tmp_path / "kept" / name / "state").touch()
    copied, copy = list[Path](), shutil.copy2

    def interrupt(source: Path, target: Path) -> None:
        if interrupted and copied:
            raise KeyboardInterrupt
        copied.append(source)
        copy(source, target)

    monkeypatch.setattr(release_zero, "_cache_path", lambda _: tmp_path / "kept")
    monkeypatch.setattr(shutil, "copy2", interrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        assert release_zero.restore(plan.Library(0, plan.DEFAULT_UNSEEN), tmp_path / "run")
    run = tmp_path / "run"
    assert (run / "deploy" / "state").exists() == run.exists() == (not interrupted)


def test_the_operator_looks_when_every_unknown_is_remembered_and_clustered(
    served: str, services: Services
) -> None:
    operator = Operator(Console(quiet=True), {"FORGEWATCH_DEPLOY_URL": served})
    waiting = threading.Thread(target=partial(operator.await_clustered, 12))
    waiting.start()
    for numbers in (range(4), range(4, 12)):
        waiting.join(0.5)
        assert waiting.is_alive()
        with services.memory.write() as connection:
            insert_rows(connection, [unknown(number) for number in numbers])
    waiting.join(0.5)
    assert waiting.is_alive()
    stop = threading.Event()
    memory = threading.Thread(target=keep_clustered, args=(services.memory_settings, stop))
    memory.start()
    waiting.join(60)
    stop.set()
    memory.join(60)
    assert not waiting.is_alive()
    assert sum(len(cluster.members) for cluster in list_clusters(services.memory)) == 12


def environment(supervisor: Supervisor) -> dict[str, str]:
    (updater,) = supervisor.states()
    return psutil.Process(updater.pid).environ()


@pytest.mark.slow
def test_only_the_making_of_release_0_has_the_demos_training_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    settings = {
        "FORGEWATCH_UPDATER_SEED": "77",
        "FORGEWATCH_UPDATER_METRICS_PORT": str(free_port()),
        "FORGEWATCH_UPDATER_WORK_DIR": str(run / "work"),
        "FORGEWATCH_UPDATER_DATABASE_URL": f"sqlite:///{run}/updater.sqlite",
        "FORGEWATCH_MEMORY_DATABASE_URL": f"sqlite:///{run}/memory.sqlite",
        "FORGEWATCH_MEMORY_CROPS_URL": str(run / "crops"),
    }
    write_environment(tmp_path / "stack.env", settings)
    own = {**os.environ, **settings}
    supervisor = start_supervisor(run / "supervisor", socket_folder(run), own, lambda child: None)
    try:
        record = StackRecord.of(supervisor.process, supervisor.folder, supervisor.sockets)
        write_record(tmp_path / "stack.json", record)
        launch_room(supervisor, run, "updater")
        training = plan.release_zero_settings(SEED, plan.DEFAULT_UNSEEN)
        for_release_0 = {
            f"FORGEWATCH_UPDATER_{what}" for what in ("WITHOUT_KINDS", "LOCALIZER_STEPS", "SCANNER_STEPS")
        }
        assert for_release_0 <= training.keys()
        with suppress(InterruptedError), updater_by(tmp_path, training):
            assert training.items() <= environment(supervisor).items()
            raise InterruptedError
        kept = environment(supervisor)
        assert not for_release_0 & kept.keys()
        assert kept["FORGEWATCH_UPDATER_SEED"] == "77"
    finally:
        supervisor.stop()
