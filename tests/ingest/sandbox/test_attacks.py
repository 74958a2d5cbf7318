"""Bar M1: a hostile file costs its bounded share of processor and memory, and hurts no other."""

import resource
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from attacks import attacks, wide_png
from media import photo, slow_jpeg

from ingest.records import CropPlan, Decoded, MediaPlan, Place, PlacesPlan
from ingest.sandbox import child as child_module
from ingest.sandbox.child import Child, used_s
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = [pytest.mark.slow, pytest.mark.bar("M1")]

HOSTILE = Path(__file__).parents[4] / "shared" / "media" / "hostile"
PLAN = MediaPlan(crops=CropPlan(patches=1, face_patches=0))
MOST_BYTES = 512 * 2**20
# The kernel counts a process's seconds in whole ones, should nobody come to look at it.
MOST_LATE_S = 1.2


@dataclass
class Cost:
    """What a file took of its children: processor time together, memory of the one that had most."""

    processor_s: float = 0.0
    memory_bytes: int = 0
    said: list[str] = field(default_factory=list)


class MeasuredChild(Child):
    """A child whose peak of memory begins anew with each look, as the kernel counts it."""

    cost = Cost()

    def decode(self, *item):
        folder = Path(f"/proc/{self._observed.pid}")
        (folder / "clear_refs").write_text("5")
        began_s = used_s(self._observed)
        try:
            return super().decode(*item)
        finally:
            cost = MeasuredChild.cost
            cost.processor_s += used_s(self._observed) - began_s
            peaks = [
                line for line in (folder / "status").read_text().splitlines() if line.startswith("VmHWM")
            ]
            # One that has ended by itself says nothing any more.
            cost.memory_bytes = max([cost.memory_bytes, *(int(line.split()[1]) * 1024 for line in peaks)])


@pytest.fixture(autouse=True)
def _measured(monkeypatch):
    monkeypatch.setattr("ingest.sandbox.sandbox.Child", MeasuredChild)
    MeasuredChild.cost = Cost()


def cost_of(box, data):
    """Look at a file, and again at what the first look says is there, as a scanner does."""
    MeasuredChild.cost = cost = Cost()
    for seen in _looks(box, data):
        cost.said.append(seen if isinstance(seen, str) else seen.kind)
    return cost


def _looks(box, data):
    first = _look(box, data, MediaPlan(), 0.0)
    yield first
    if isinstance(first, Decoded):
        numbers = range(0, first.length, max(1, first.length // 100))
        places = tuple(Place(number, first.width // 2, first.height // 2) for number in numbers)[:200]
        yield _look(box, data, PlacesPlan(places=places, most_decoded=1_000), first.processor_s)


def _look(box, data, plan, spent_s):
    try:
        return box.submit(data, plan, spent_s).result(600)
    except DecodeError as error:
        return error.reason


def test_every_attack_costs_at_most_its_processor_time_and_memory_and_hurts_none(bar, monkeypatch, capsys):
    settings = IngestSettings() if bar.long else IngestSettings(max_pixels=4_000_000)
    if not bar.long:
        monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 1.0)
    files = attacks(bar.times(30, 300), settings.max_pixels)
    costs, most_s = dict[str, Cost](), dict[str, float]()
    with Sandbox(settings) as box:
        for name, data in files:
            costs[name] = cost_of(box, data)
            most_s[name] = child_module.most_processor_s(data) + MOST_LATE_S
        for file in sorted(HOSTILE.glob("*")) if bar.long else ():
            costs[file.name] = cost_of(box, data := file.read_bytes())
            most_s[file.name] = child_module.most_processor_s(data) + MOST_LATE_S
        after = box.submit(photo(), MediaPlan()).result(60)
    bar.count(len(costs), lost=0)
    if bar.long:
        with capsys.disabled():
            _show(costs)
    assert len(after.crops) > 1
    assert {name: cost for name, cost in costs.items() if cost.processor_s > most_s[name]} == {}
    assert {name: cost for name, cost in costs.items() if cost.memory_bytes > MOST_BYTES} == {}


def _show(costs):
    print("\n", Counter(said for cost in costs.values() for said in cost.said))
    for worst in (lambda cost: cost.processor_s, lambda cost: float(cost.memory_bytes)):
        for name, cost in sorted(costs.items(), key=lambda pair: -worst(pair[1]))[:8]:
            figures = f"{cost.processor_s:5.1f} s {cost.memory_bytes / 2**20:5.0f} MiB"
            print(f"{figures}  {name[:60]}  {', '.join(cost.said)}")


@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "control: without the kernel's bound"])
def test_a_picture_that_needs_more_than_its_memory_is_refused_by_the_kernel(bar, monkeypatch, bounded):
    limit = Child._limit
    if not bounded:
        monkeypatch.setattr(
            Child,
            "_limit",
            lambda self, name, value: None if name == resource.RLIMIT_DATA else limit(self, name, value),
        )
    data = wide_png(13_000, 13_000, depth=1, colour=0)
    with Sandbox(IngestSettings(max_pixels=200_000_000)) as box:
        said, cost = _look(box, data, PLAN, 0.0), MeasuredChild.cost
    bar.count(1)
    assert (cost.memory_bytes <= MOST_BYTES) == bounded
    assert (said == "out_of_memory") == bounded


@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "control: without a bound"])
def test_a_picture_of_many_scans_is_ended_at_its_processor_time(bar, monkeypatch, bounded):
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 0.1 if bounded else 100.0)
    with Sandbox(IngestSettings()) as box:
        said, cost = _look(box, slow_jpeg(1_500, 2_700), PLAN, 0.0), MeasuredChild.cost
    bar.count(1)
    assert (cost.processor_s <= 0.1 + MOST_LATE_S) == bounded
    assert (said == "timeout") == bounded
