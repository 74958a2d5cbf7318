"""Media of a benchmark is also shown whole, where a model looks at it so."""

import io

import numpy as np
from PIL import Image

from ingest.records import CropPlan, PicturePlan
from ingest.sandbox.extract import shown
from updater.benchmark.data import crops as crops_module
from updater.benchmark.data.cddb import load_cddb
from updater.benchmark.data.crops import CropReader

PLAN = CropPlan(crop_px=32, patches=2, face_patches=0)
SHOWN = PicturePlan(width_px=24, height_px=16, interpolation="bicubic")


def test_media_is_also_shown_whole_and_kept_so(tmp_path, monkeypatch):
    folder, cache = tmp_path / "data", tmp_path / "cache"
    for number, place in enumerate(f"{p}/{k}" for p in ("train", "val") for k in ("0_real", "1_fake")):
        (folder / "gan" / place).mkdir(parents=True)
        for index in range(3):
            pixels = np.random.default_rng([number, index]).integers(0, 256, (40, 48, 3), dtype=np.uint8)
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, "PNG")
            (folder / "gan" / place / f"{index}.png").write_bytes(out.getvalue())

    def load(plan):
        with CropReader(PLAN, cache, processes=1, picture=plan) as opened:
            return load_cddb(folder, "gan", opened).tasks[0].test

    plain, items = load(None), load(SHOWN)
    assert plain.pictures is None
    assert items.pictures.shape == (len(items), 16, 24, 3)
    source = np.asarray(Image.open(folder / items.ids[2].partition("@")[0]))
    assert np.array_equal(items.pictures[2:3][0], shown(source, SHOWN))
    assert np.array_equal(items.take([2, 1]).pictures[:], items.pictures[[2, 1]])
    monkeypatch.setattr(crops_module, "Sandbox", None)
    assert np.array_equal(load(SHOWN).pictures[:], items.pictures[:])
    assert load(None).pictures is None
