"""`forgewatch up` and `forgewatch down`: a stack that outlives the command that started it."""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from pydantic import SecretStr
from rich.console import Console

from deploy.client.http import Client
from deploy.client.prometheus import scored_by
from deploy.environment import TOKEN, check_settings, read_environment
from deploy.local.processes import StackError
from deploy.local.record import HOME, Ports, StackRecord, read_record, usable_ports
from deploy.local.restarts import lack_of_room
from deploy.local.stack import HOW_TO_HAVE_PROMETHEUS, PROMETHEUS_URL, Stack, process_address
from deploy.local.supervisor import Supervisor
from deploy.releases.signing import said_of
from deploy.settings import DeploySettings
from detector.release.artifact import version_of
from ingest.settings import IngestSettings


def up(home: Path = HOME, console: Console | None = None) -> None:
    """Start a stack in `home` and leave it running; says so where it runs already.

    Default ports, and a free one in place of each that is taken. A stack of which a part was given up,
    or that a reboot ended, is started anew on the state that it left. Where a release is live, this
    returns once it scores. Raises processes.StackError, environment.SettingsWrong, http.ClientError and
    kafka.errors.KafkaError.
    """
    console = console or Console(soft_wrap=True)
    check_settings()
    home.mkdir(parents=True, exist_ok=True)
    if lack := lack_of_room(home):
        raise StackError(f"{lack}: make room, and `forgewatch up` again; processes that waited go on")
    with _alone(home):
        record = read_record(home / "stack.json")
        if record is not None:
            why = _problem_of_stack(home, record.supervisor())
            if not why:
                console.print("Forgewatch runs here already.")
                print_endpoints(home, console)
                return
            console.print(f"The remains of a stack are ended first ({why}).")
            _end(home, record)
        fresh = not (home / "run").exists()
        stack = Stack(home, ports=usable_ports(Ports(), console), cache=home / "cache", console=console)
        try:
            stack.start()
        except (KeyboardInterrupt, SystemExit):
            if fresh:
                shutil.rmtree(stack.run, ignore_errors=True)
            raise
        if os.environ.get(TOKEN):
            console.print(
                f"{TOKEN} is yours: no part of the stack was given it. Until"
                " `forgewatch token add NAME --role admin`, anyone who reaches the stack has full rights."
            )
        await_verdicts(stack.settings, console)
        print_endpoints(home, console)


def down(home: Path = HOME, console: Console | None = None, *, purge: bool = False) -> None:
    """Stop the stack of `home`, which `up` goes on with, or whose state `purge` deletes.

    It ends any that a killed demonstration left below it, too, and removes their state. Says so where nothing
    runs. The cache stays. Raises processes.StackError.
    """
    console = console or Console(soft_wrap=True)
    if not home.is_dir():
        console.print("Nothing runs here.")
        return
    with _alone(home):
        ended = 0
        for folder in (home, *(path.parent for path in home.glob("*/stack.json"))):
            record = read_record(folder / "stack.json")
            if record is not None:
                ended += _end(folder, record)
            if purge or folder != home:
                shutil.rmtree(folder / "run", ignore_errors=True)
        console.print(f"Stopped: {ended} processes." if ended else "Nothing runs here.")
        for name, content in _KEPT.items():
            if (kept := home / name).exists():
                size = sum(path.stat().st_size for path in kept.rglob("*") if path.is_file())
                console.print(f"{kept} stays ({size / 1e6:.0f} MB: {content}).")


_KEPT = {
    "run": "topics, memory, releases; `forgewatch up` goes on with it, `forgewatch down --purge` deletes it",
    "cache": "the broker's jars, made releases",
}


def _problem_of_stack(home: Path, supervisor: Supervisor) -> str:
    """Why the stack must be started anew; empty where it runs, or is being brought back."""
    if not (home / "stack.env").exists():
        return "it never came up whole"
    try:
        return ", ".join(f"{kept.name}: {kept.state}" for kept in supervisor.states() if kept.given_up)
    except (StackError, OSError):
        return "its supervisord is dead"


def _end(folder: Path, record: StackRecord) -> int:
    """End the processes of a stack, also where its supervisord was killed; returns how many they were."""
    supervisor = record.supervisor()
    ended = len(supervisor.processes())
    supervisor.stop()
    shutil.rmtree(record.sockets, ignore_errors=True)
    for name in ("stack.json", "stack.env"):
        (folder / name).unlink(missing_ok=True)
    return ended


def print_endpoints(home: Path, console: Console) -> None:
    """Say where everything of the stack in `home` listens and how to use it."""
    settings = read_environment(home / "stack.env")
    command = Path(sys.executable).parent / "forgewatch"
    broker = settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"]
    media = f"{settings.get('FORGEWATCH_INGEST_TOPIC_PREFIX', 'forgewatch')}.media"
    signers = settings.get("FORGEWATCH_DETECTOR_TRUSTED_SIGNERS")
    most = settings.get("FORGEWATCH_INGEST_MAX_MEDIA_BYTES", IngestSettings().max_media_bytes)
    name = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    console.print(
        f"""
Kafka            {broker}, no authentication
TorchServe       {settings["FORGEWATCH_DETECTOR_TORCHSERVE_URL"]}
page             {settings["FORGEWATCH_DEPLOY_URL"]}/
API              {settings["FORGEWATCH_DEPLOY_URL"]}/docs
metrics          {_metrics(settings)}
Prometheus       {settings.get(PROMETHEUS_URL, HOW_TO_HAVE_PROMETHEUS)}
signatures       {said_of(Path(signers) if signers else None)}
state and logs   {home / "run"}
settings         {home / "stack.env"}

send a file      {name} send photo.jpg
                 kcat -P -b {broker} -X message.max.bytes={most} -t {media} photo.jpg
read verdicts    {name} verdicts --follow
how it does      {name} status
stop it          {name} down""",
        highlight=False,
        markup=False,
    )


def _metrics(settings: dict[str, str]) -> str:
    rooms = ("detector", "memory", "updater", "deploy")
    return ", ".join(f"{room} :{settings[f'FORGEWATCH_{room.upper()}_METRICS_PORT']}" for room in rooms)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold `home` against another up or down at the same time; leaves no file behind."""
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StackError(
            f"another forgewatch up or down is at work in {home}: wait for it, or interrupt it"
        ) from error
    finally:
        os.close(folder)


_TIMEOUT_S = 180.0
_POLL_S = 0.2


def await_verdicts(settings: Mapping[str, str], console: Console) -> bool:
    """Wait until the detector scores by the live release; False where none is.

    `settings` are a stack's FORGEWATCH_… variables. Raises StackError, ClientError.
    """
    detector = SecretStr(settings["FORGEWATCH_DETECTOR_DEPLOY_TOKEN"])  # people may have tokens of their own
    with Client(DeploySettings(url=settings["FORGEWATCH_DEPLOY_URL"], token=detector), "up") as api:
        rollout = api.rollout()
    if rollout is None:
        return False
    wanted, port = version_of(rollout.stable), settings["FORGEWATCH_DETECTOR_METRICS_PORT"]
    until = time.monotonic() + _TIMEOUT_S
    with console.status(f"the detector loads release {wanted}"):
        while not _scores_by(wanted, port):
            if time.monotonic() > until:
                raise StackError(
                    f"release {wanted} is live, but the detector did not score by it within "
                    f"{_TIMEOUT_S:.0f} s: `forgewatch doctor` says what is wrong"
                )
            time.sleep(_POLL_S)
    return True


def _scores_by(version: str, port: str) -> bool:
    try:
        ready = httpx.get(process_address(port, "readyz"), timeout=5, trust_env=False).is_success
        return ready and version in scored_by(process_address(port, "metrics"))
    except httpx.HTTPError:
        return False
