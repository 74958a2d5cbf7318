import csv
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from deploy.demo import release_zero
from deploy.demo.release_zero import copy_shipped
from deploy.local.processes import StackError
from detector.features.texture_weights import texture_weights
from detector.release.artifact import MODEL, MODEL_CARD, PROBE, SNAPSHOT, STATISTICS, verify
from detector.serving.session import open_session
from memory.records import REAL
from updater.benchmark.default_release import SOURCE, is_open, make, rows_of, ship
from updater.candidate.plan import load_parent
from updater.candidate.snapshot import SnapshotRow, pack_rows
from updater.progress import no_progress
from updater.training.sums import sums_of

COLUMNS = ("path", "source_repository", "licence", "cls", "source", "group")


OPEN = "MIT|Apache-2.0|CC BY-SA|own terms in license.html (CC BY-SA)|none stated; Kodak: unrestricted"
CLOSED = (
    "none stated|none stated; CC BY-NC-SA 4.0 by its README|CC BY-NC 4.0|AGPL-3.0|GPL|own terms in LICENSE"
    "|non-commercial research"
)


def test_only_terms_that_let_a_derived_work_be_passed_on_are_learnt_from():
    assert [licence for licence in f"{OPEN}|{CLOSED}".split("|") if is_open(licence)] == OPEN.split("|")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pictures of noise of four makers, one of whom lets nothing be passed on."""
    folder, rng, rows = tmp_path_factory.mktemp("data"), np.random.default_rng(0), []
    for source, licence in (("a", "MIT"), ("b", "CC0"), ("c", "BSD"), ("closed", "none stated")):
        for number in range(80):
            cls, name = ("fake", "real")[number % 2], f"{source}-{number}.png"
            grain = rng.normal(0, 4 if cls == "real" else 9, (40, 40, 3))
            Image.fromarray(np.clip(128 + grain, 0, 255).astype(np.uint8)).save(folder / name)
            rows.append((name, f"maker/{source}", licence, cls, source, name))
    with (folder / "manifest.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([COLUMNS, *rows])
    return folder


@pytest.mark.slow
def test_what_ships_is_equal_each_time_names_its_makers_and_has_no_weights(data, tmp_path, monkeypatch):
    rows = rows_of(data, everything=False)
    assert {row["source"] for row in rows} == {"a", "b", "c"}
    assert len(rows_of(data, everything=True)) == len(rows) + 80
    first = make(data, rows, tmp_path / "first", 0, no_progress)
    assert make(data, rows, tmp_path / "second", 0, no_progress).digest == first.digest
    kept = tmp_path / "kept"
    assert ship(first, kept) < 20 * 2**20
    weights = texture_weights()
    assert weights[:400].tobytes() in (first.folder / MODEL).read_bytes()
    assert weights[:400].tobytes() not in (kept / MODEL).read_bytes()
    assert "| a | maker/a | MIT | fake | 40 |" in (kept / MODEL_CARD).read_text()
    assert b"release-0" in load_file(kept / STATISTICS)["strata"].tobytes()
    assert not (kept / SNAPSHOT).exists()

    monkeypatch.setattr(release_zero, "SHIPPED_DIGEST", first.digest)
    whole = copy_shipped(tmp_path / "whole", kept)
    assert verify(whole.folder, first.digest) == whole
    open_session(whole, threads=1)
    damaged = tmp_path / "damaged"
    shutil.copytree(kept, damaged)
    probe = bytearray((damaged / PROBE).read_bytes())
    probe[-1] ^= 1
    (damaged / PROBE).write_bytes(probe)
    with pytest.raises(StackError, match=r"not served.*probe") as refused:
        copy_shipped(tmp_path / "refused", damaged)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_the_release_that_lies_in_the_package_is_the_one_that_the_code_names(tmp_path):
    release = copy_shipped(tmp_path / "release")
    assert release.manifest.classes == ("real", "generated")
    assert release.manifest.gate.first_sight is not None
    assert sum(path.stat().st_size for path in release_zero.SHIPPED.iterdir()) < 20 * 2**20
    open_session(release, threads=1)


@pytest.mark.slow
def test_a_source_called_as_the_shipped_sums_is_neither_added_to_them_nor_takes_them_out(tmp_path):
    release = copy_shipped(tmp_path / "release")
    known = load_parent(release).statistics
    assert known is not None
    updated = known.plus(sums_of(np.ones((20, known.width)), [REAL] * 20, [SOURCE] * 20))
    assert updated.without({SOURCE}).shares.tolist() == known.shares.tolist()
    # The next update takes out what the memory holds, to sum it anew.
    save_file(dict(updated.tensors()), release.folder / STATISTICS)
    row = {"exemplar": "import-0", "media_digest": "0" * 64, "family": REAL, "split": "train", "group": "a"}
    (release.folder / SNAPSHOT).write_bytes(pack_rows([SnapshotRow(**row, source=SOURCE, label=1)]))
    left = load_parent(release).statistics
    assert left is not None
    assert (left.strata, left.shares.tolist()) == (known.strata, known.shares.tolist())
