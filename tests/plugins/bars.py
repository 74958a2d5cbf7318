"""The fault tests: each belongs to a bar. `make chaos` runs them in their long form and shows a table.

A test that proves a bar, or its control, has the mark `bar("B2")` and counts by the fixture `bar`. Without
`--chaos` the same test is short, and one with `bar("B2", chaos=True)` is left out: another shows its fault.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import pytest

_COLUMNS = ("bar", "test", "faults", "lost", "twice", "worst recovery", "")


@dataclass(frozen=True)
class Counted:
    """What a fault test saw. None: the bar is of something else."""

    faults: int
    lost: int | None = None
    twice: int | None = None
    recovery_s: float | None = None


class Bar:
    """What a fault test is told, and where it leaves what it counted."""

    def __init__(self, *, long: bool, soak_s: float, properties: list[tuple[str, object]]) -> None:
        self.long = long
        self.soak_s = soak_s
        self._properties = properties

    def times(self, short: int, long: int) -> int:
        """How often: in `make test` or in `make chaos`."""
        return long if self.long else short

    def count(
        self,
        faults: int,
        *,
        lost: int | None = None,
        twice: int | None = None,
        recovery_s: float | None = None,
    ) -> None:
        """Leave the row of this test. Called before anything is asserted: a failure shows its figures."""
        self._properties.append(("counted", asdict(Counted(faults, lost, twice, recovery_s))))


@pytest.fixture
def bar(request: pytest.FixtureRequest) -> Bar:
    """How often this test causes its fault, and where it counts."""
    option = request.config.getoption
    soak_s = 60.0 * option("--soak-minutes")
    return Bar(long=option("--chaos"), soak_s=soak_s, properties=request.node.user_properties)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make chaos`."""
    group = parser.getgroup("chaos")
    group.addoption("--chaos", action="store_true", help="the fault tests alone, long, and a table")
    group.addoption("--soak-minutes", type=float, default=120.0, help="how long the soak of L1 is")
    group.addoption("--bar", default="", help="of these bars alone: B1,S3")


def pytest_configure(config: pytest.Config) -> None:
    """A long form may take what it takes: the limit of a test is for those of `make test`."""
    if config.getoption("--chaos"):
        config.option.timeout = 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the bars that were asked for; without `--chaos` and a bar, the short forms."""
    wanted = {name for name in config.getoption("--bar").upper().split(",") if name}
    bars = {item: _bars(item) for item in items}
    if unknown := wanted - {name for names in bars.values() for name in names}:
        raise pytest.UsageError(f"there is no bar {', '.join(sorted(unknown))}")
    if wanted or config.getoption("--chaos"):
        left = [item for item in items if not (bars[item] & wanted if wanted else bars[item])]
    else:
        left = [item for item in items if any("chaos" in mark.kwargs for mark in item.iter_markers("bar"))]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Say in the report which bars a test is of."""
    if names := _bars(item):
        item.user_properties.append(("bar", ",".join(sorted(names))))


def _bars(item: pytest.Item) -> set[str]:
    return {name for mark in item.iter_markers("bar") for name in mark.args}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the table: a row a test, whatever its parameters."""
    if not config.getoption("--chaos"):
        return
    rows = sorted(_row(key, seen) for key, seen in _seen(terminalreporter.stats).items())
    widths = [max(len(row[n]) for row in [_COLUMNS, *rows]) for n in range(len(_COLUMNS))]
    terminalreporter.section("chaos")
    for row in (_COLUMNS, *rows):
        terminalreporter.write_line("  ".join(map(str.ljust, row, widths)).rstrip())


def _seen(stats: dict[str, list[Any]]) -> dict[tuple[str, str], list[tuple[str, dict[str, Any]]]]:
    """The outcome of each test of a bar, and what it counted, by bar and name."""
    seen: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in stats.get(outcome, ()):
            said = dict(getattr(report, "user_properties", ()))
            if "bar" in said:
                name = report.nodeid.rpartition("::")[2].partition("[")[0].removeprefix("test_")
                key = said["bar"], name.replace("_", " ")
                seen.setdefault(key, []).append((outcome, said.get("counted", {})))
    return seen


def _row(key: tuple[str, str], seen: list[tuple[str, dict[str, Any]]]) -> tuple[str, ...]:
    def figures(name: str) -> list[Any]:
        return [counted[name] for _, counted in seen if counted.get(name) is not None]

    sums = [str(sum(found)) if (found := figures(name)) else "" for name in ("faults", "lost", "twice")]
    recovery = f"{max(found):.1f} s" if (found := figures("recovery_s")) else ""
    outcomes = Counter(outcome for outcome, _ in seen)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    return (*key, *sums, recovery, ends)
