"""Processes forked from one that has imported what they need: torch and timm alone take five seconds."""

import contextlib
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import psutil
import pytest

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("pytest", "torch._dynamo", "timm"),
        *(f"{room}.process" for room in ("deploy", "detector", "memory", "updater")),
        *("updater.candidate.builder", "updater.runner"),
        *("updater.benchmark.deeperforensics.tree", "updater.benchmark.synthetic.stream"),
    ]
)

Fork = Callable[..., "Forked"]


class Forked:
    """A script in a process of its own, with the names that psutil.Popen has for what tests ask of it."""

    def __init__(
        self, script: Path, environment: Mapping[str, str], *arguments: str, cwd: Path | None = None
    ) -> None:
        """cwd: the folder that it runs in; its standard error is to be read from `stderr` then."""
        reader, writer = FORKS.Pipe(duplex=False)
        begun = (str(script), dict(environment), arguments)
        self._process = FORKS.Process(target=_run, args=(*begun, cwd, writer if cwd else None))
        self._process.start()
        writer.close()
        self.stderr = os.fdopen(os.dup(reader.fileno()))
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.send_signal = lambda number: os.kill(self.pid, number)
        self.kill = self._process.kill

    @property
    def returncode(self) -> int | None:
        """The exit code, None while it runs; negative is the signal that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise psutil.TimeoutExpired(timeout, self.pid)
        return self._process.exitcode


@pytest.fixture(scope="session", autouse=True)
def _imports_begin(request: pytest.FixtureRequest) -> None:
    """Begin before what a test calls begins with less; and once the output is captured."""
    if hasattr(request.config, "workerinput") and any(
        "slow" in item.keywords for item in request.session.items
    ):
        ensure_running()


def _run(
    script: str,
    environment: dict[str, str],
    arguments: tuple[str, ...],
    cwd: Path | None,
    stderr: Connection | None,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if cwd and stderr:
        os.chdir(cwd)
        os.dup2(stderr.fileno(), 2)
        stderr.close()
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


@pytest.fixture(scope="module")
def fork() -> Iterator[Fork]:
    """Starts a script in an environment, with arguments; what is left of it after the file is killed."""
    with contextlib.ExitStack() as ends:

        def fork(
            script: Path, environment: Mapping[str, str], *arguments: str, cwd: Path | None = None
        ) -> Forked:
            process = Forked(script, environment, *arguments, cwd=cwd)
            ends.callback(process.stderr.close)
            ends.callback(process.wait)
            ends.callback(process.kill)
            return process

        yield fork


@pytest.fixture(scope="module")
def fork_together(fork: Fork) -> Callable[..., list[Forked]]:
    """Starts so many processes of a script as torchrun would, whose place this process takes."""
    import torch.distributed as dist

    stores = []

    def fork_together(
        count: int, script: Path, environment: Mapping[str, str], *arguments: str
    ) -> list[Forked]:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        stores.append(store)
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(count),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        return [fork(script, {**environment, **shared, **rank}, *arguments) for rank in ranks]

    return fork_together
