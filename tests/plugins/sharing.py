"""How tests share a machine and a process: a file at a time, the longest ones first, logs as they were."""

import gc
from collections.abc import Callable, Iterator

import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from ingest.sandbox.forks import Forks

_SHARE_SERVERS = "tests/system"
_LONGEST = tuple(f"tests/updater/test_{name}.py" for name in ("run", "runner_takeover", "runner_experts"))
"""Take minutes."""


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a file to one process, which makes its fixtures once, and all files that share servers too."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _SHARE_SERVERS if file.startswith(_SHARE_SERVERS) else file


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples a property has: 200 in `make chaos`, 15 before each commit, else 25."""
    # How long an example takes is the machine's affair: no test is timed.
    fast = config.option.markexpr == "not slow and not system"
    examples = 200 if config.getoption("--chaos", False) else 15 if fast else 25
    settings.register_profile("forgewatch", deadline=None, max_examples=examples)
    settings.load_profile("forgewatch")


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _ByFile:
    """`--dist loadgroup` would do it by marks, but xdist 3.8 writes them where pytest 9.2 does not look."""
    return _ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays: to look through it for garbage, now or later, is a sixth of this time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """At the end all goes; libraries complain of what stays."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)  # when every mark is set
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what starts servers, then what is slow: no process is left alone with it at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, bool, bool]:
    # By marks: a keyword may be a parameter. Those that share servers stay together, slow or not.
    system, slow = (item.get_closest_marker(name) is not None for name in ("system", "slow"))
    return not system, not (system or slow), not item.nodeid.startswith(_LONGEST)


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command or a process that a test starts here configures the logs of all the tests that follow it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


class _KeptForks(Forks):
    """One that outlives its sandbox."""

    def close(self) -> None:
        """Leave it to the sandbox of the next test."""


@pytest.fixture(scope="session")
def kept_forks() -> Iterator[Callable[[int], Forks]]:
    """Gives the process that decoding children are forked from: its start takes a second."""
    kept: dict[int, _KeptForks] = {}
    yield lambda max_pixels: kept.get(max_pixels) or kept.setdefault(max_pixels, _KeptForks(max_pixels))
    for forks in kept.values():
        Forks.close(forks)


@pytest.fixture(autouse=True)
def sandboxes_fork_from_one_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kept_forks: Callable[[int], Forks]
) -> None:
    """The sandboxes' own tests aside."""
    if "tests/ingest/" not in request.node.path.as_posix():
        monkeypatch.setattr("ingest.sandbox.sandbox.Forks", kept_forks)
