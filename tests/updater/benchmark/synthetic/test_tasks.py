"""The project's own stream as tasks, and that it is still the stream that the figures were measured on."""

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from ingest.records import CropPlan
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.tasks import Stream
from updater.benchmark.synthetic import tasks
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.stream import FROZEN, REAL, SPLITS, digest, make
from updater.benchmark.synthetic.tasks import load_synthetic

PLAN = CropPlan(crop_px=64, patches=1, face_patches=0)
FROZEN_LOOK = Path(__file__).with_name("synthetic_stream_frozen.json")


def load(cache: Path | None, families=("periodic", "smoothed")) -> Stream:
    with CropReader(PLAN, cache, processes=1) as reader:
        return load_synthetic(reader, families=families, train=4, calibration=2, test=3)


def test_each_family_is_a_task_with_reals_of_its_own(tmp_path, monkeypatch):
    stream = load(tmp_path)
    assert stream.plan == PLAN
    assert [task.name for task in stream.tasks] == ["periodic", "smoothed"]
    for task in stream.tasks:
        real, fake = f"{task.name}/real", f"{task.name}/fake"
        assert task.classes == (real, fake)
        assert [part.counts() for part in (task.train, task.calibration, task.test)] == [
            {fake: n, real: n} for n in (4, 2, 3)
        ]
        assert set(task.train.sources) == {task.name}
    parts = [part for task in stream.tasks for part in (task.train, task.calibration, task.test)]
    assert sum(len(part) for part in parts) == len({item for part in parts for item in part.ids})
    for task in stream.tasks:
        assert not set(task.train.groups) & {*task.calibration.groups, *task.test.groups}

    # The second time nothing is made, and a family's items do not depend on the families beside it.
    alone = load(None, ("smoothed",)).tasks[0]
    assert alone.test.ids == stream.tasks[1].test.ids
    assert np.array_equal(alone.test.crops[:], stream.tasks[1].test.crops[:])
    monkeypatch.setattr(tasks, "make_many", None)
    assert load(tmp_path).digest == stream.digest


def look(data: bytes) -> list[float]:
    """Size, mean colours and roughness: what stays when another processor rounds differently."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(float)
    across, down = np.abs(np.diff(pixels, axis=1)).mean(), np.abs(np.diff(pixels, axis=0)).mean()
    bend = np.abs(np.diff(pixels, 2, axis=1)).mean()
    return [*pixels.shape[:2], *pixels.mean((0, 1)).round(3), *np.round([across, down, bend], 3)]


def looks() -> dict[str, list[float]]:
    return {
        f"{split}/{family}": look(make(0, split, family, 0).data)
        for split in SPLITS
        for family in (REAL, *FAMILIES)
    }


def test_the_stream_is_the_one_that_was_frozen():
    # Bytes are equal on machines with like vector instructions and packages; a pixel may round elsewhere.
    if digest(0, each=1) == FROZEN:
        return
    frozen, found = json.loads(FROZEN_LOOK.read_text()), looks()
    assert found.keys() == frozen.keys(), (
        "families or splits changed: freeze anew, and measure all figures anew"
    )
    off = {name: (found[name], frozen[name]) for name in frozen if not alike(found[name], frozen[name])}
    assert not off, (
        "the stream's pictures changed by more than another processor's rounding: if that is meant, set"
        f" FROZEN and {FROZEN_LOOK.name}, and measure all figures anew. Seen and frozen: {off}"
    )


def alike(found: list[float], frozen: list[float]) -> bool:
    return bool(np.allclose(found, frozen, rtol=0.005, atol=0.05))


def test_what_is_kept_of_the_frozen_stream_shows_a_changed_forgery():
    # Or the comparison above would pass everything: here a little noise, and a little contrast.
    data = make(0, "after", "sharpened", 0).data
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    for change in (np.random.default_rng(0).integers(-2, 3, pixels.shape), (pixels - pixels.mean()) * 0.02):
        out = io.BytesIO()
        Image.fromarray((pixels + change).clip(0, 255).astype(np.uint8)).save(out, "PNG")
        assert not alike(look(out.getvalue()), look(data))
    assert alike(look(data), json.loads(FROZEN_LOOK.read_text())["after/sharpened"])
