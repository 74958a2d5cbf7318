"""The commands about what the memory holds, against a real server in this process."""

import re
from contextlib import closing
from unittest.mock import patch

import numpy as np
import pytest
from exemplars import make_arrival
from PIL import Image

from deploy.cli.main import main
from memory.clusters.clustering import renew
from memory.features import FEATURE_VERSION, WIDTH
from memory.index.index import Index
from memory.intake import remember
from memory.records import Declared, LabelledCount
from memory.settings import MemorySettings
from memory.store import Store


# The commands about what the memory and the record hold, and Label Studio's, against a real server.
def as_the_memory_does():
    """Compute the clusters, by the settings of the environment."""
    settings = MemorySettings()
    with closing(Store(settings.database_url)) as store:
        renew(store, settings)


def test_before_an_update_is_trained_it_is_said_what_it_will_rest_on(answered):
    reals = [LabelledCount("real", "import:trip", split, 30, 9) for split in ("train", "calibration")]
    counted = [*reals, LabelledCount("gan", "import:trip", "train", 5, 5)]
    with patch("deploy.server.releases.labelled_counts", return_value=counted):
        told = answered.ok("update")
        assert answered.json("update")["state"] == "queued"
    assert re.search(r"import:trip\s+9\s+9\s+0", told)
    assert "The thresholds rest on 9 groups of reals" in told
    assert "import:trip (about 55 more reals)" in told
    assert "gan will not be learnt yet: it lacks 3 for train, 2 for calibration, 2 for test" in told
    assert "Nothing can be learnt yet: reals lack 2 for test" in told
    assert told.index("rest on") < told.index("update 1 is queued")


@pytest.mark.slow
def test_labelled_folders_are_imported_and_listed_and_undone(answered, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for family in ("real", "blend"):
        folder = tmp_path / "media" / family
        folder.mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 256, (160, 160, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "0_real").mkdir()
    for name in ("0_real/a.png", "0_real/b.png", "notes.txt"):
        (folder / name).write_text("no picture")
    done = answered.json("import", "media", "--source", "/cameras/7", "--as", "ada")
    assert done["new"] == {"real": 2, "blend": 2}
    left_out = ["blend/0_real/a.png", "blend/0_real/b.png", "blend/notes.txt"]
    assert [skipped["path"] for skipped in done["skipped"]] == left_out
    called = {(entry["what"], entry["actor"]) for entry in answered.json("labels")}
    assert called == {("real", "ada"), ("blend", "ada")}
    assert main(["import", "media"]) == 0
    told = "left out: blend/0_real/a.png and 1 more: its folder 0_real contradicts blend"
    assert told in capsys.readouterr().err
    assert "/cameras/7" in answered.ok("update"), "the source that the stream has"
    with patch("deploy.client.importing._send", side_effect=KeyboardInterrupt):
        Image.fromarray(pixels[::-1]).save(folder / "3.png")
        assert main(["import", "media"]) == 130
        assert "run the same command again to go on" in capsys.readouterr().out
    undone = answered.json("undo", str(done["labels"]["blend"]), "--as", "bob")
    assert undone["exemplars"] == 2
    shelves = {(s["shelf"], s["family"]): s["count"] for s in answered.json("status")["shelves"]}
    assert shelves[("unknown", None)] == 2
    assert answered.json("clusters") == []
    assert "never computed" in answered.ok("clusters")
    assert "2 unknowns came since" in answered.ok("clusters")
    as_the_memory_does()
    (cluster,) = answered.json("clusters")
    assert (cluster["size"], cluster["unclustered"]) == (2, True)
    listed = answered.ok("clusters")
    assert "unclustered" in listed
    assert "computed at" in listed
    assert "came since" not in listed
    assert "say which state you saw" in answered.fails("label", cluster["id"], "ignore", code=2)
    assert f"{cluster['id']}@{cluster['version']}" in listed
    assert answered.json("label", f"{cluster['id']}@{cluster['version']}", "ignore")["exemplars"] == 2
    assert answered.json("status")["unknowns_waiting"] == 0


@pytest.mark.slow
def test_a_clusters_sheet_is_written_as_png(answered, tmp_path):
    folder = tmp_path / "media" / "blend"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "0.png")
    done = answered.json("import", "media")
    answered.ok("undo", str(done["labels"]["blend"]))
    as_the_memory_does()
    (cluster,) = answered.json("clusters")
    answered.ok("sheet", cluster["id"], "-o", "sheet.png")
    with Image.open("sheet.png") as sheet:
        assert sheet.format == "PNG"


@pytest.mark.slow
def test_declared_items_are_listed_summed_up_and_labelled_apart(answered, services):
    assert "missed by the model, declared by the file: none" in answered.ok("misses")
    file = {"declares": "generated", "generator": "Mid\x1bjourney"}
    with services.memory.write() as connection:
        for n in range(4):
            of_file = Declared(**file, missed=n == 0) if n < 3 else Declared()
            arrival, index = make_arrival(n, WIDTH, declared=of_file), Index(FEATURE_VERSION, WIDTH)
            remember(connection, services.crops, index, [arrival], [services.crops.put(arrival.crops)])
    as_the_memory_does()
    assert [item["id"] for item in answered.json("misses")] == ["media-0-0"]
    assert "Mid�journey" in answered.ok("misses")
    (cluster,) = answered.json("clusters")
    seen = f"{cluster['id']}@{cluster['version']}"
    listed = answered.ok("clusters")
    assert "3 of 4 declare a generative model (Mid�journey 3)" in listed
    assert f"forgewatch label {seen} mid-journey --declared" in listed
    assert "goes with a cluster" in answered.fails("label", "media-0-0", "gan", "--declared", code=2)
    assert answered.json("label", seen, "mid-journey", "--declared")["exemplars"] == 3
    assert answered.json("status")["unknowns_waiting"] == 1
