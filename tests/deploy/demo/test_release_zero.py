"""Whose settings the updater works by, while release 0 is made and afterwards."""

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deploy.demo import plan
from deploy.demo.release_zero import SEED, updater_by
from deploy.local.processes import free_port, socket_folder
from deploy.local.record import StackRecord, write_environment, write_record
from deploy.local.stack import launch_room
from deploy.local.supervisor import Supervisor, start_supervisor

pytestmark = pytest.mark.slow


def environment(supervisor: Supervisor) -> dict[str, str]:
    (updater,) = supervisor.kept()
    return psutil.Process(updater.pid).environ()


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
