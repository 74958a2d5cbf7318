"""The demonstration's media: the same every time, apart by split, and told from real by the forgery alone."""

import io
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.scenes import GRID_PX, PHOTOGRAPHS, piece
from updater.benchmark.synthetic.stream import REAL, SPLITS, digest, make, make_many, source, write_folders

REALS, FAKES = 300, 100


@pytest.fixture(scope="module")
def batch():
    wanted = [(REAL, index) for index in range(REALS)]
    wanted += [(family, index) for family in FAMILIES for index in range(FAKES)]
    by_family = {name: [] for name in (REAL, *FAMILIES)}
    for sample in make_many(0, "train", wanted, processes=2):
        by_family[sample.family].append(sample)
    return by_family


def _metadata(sample):
    image = Image.open(io.BytesIO(sample.data))
    tables = image.quantization if image.format == "JPEG" else {}
    mean = np.asarray(image.convert("RGB")).mean((0, 1))
    return {
        "bytes": len(sample.data),
        "is JPEG": image.format == "JPEG",
        "width": image.width,
        "height": image.height,
        "area": image.width * image.height,
        "red": mean[0],
        "green": mean[1],
        "blue": mean[2],
        "brightness": mean.mean(),
        "quality": -float(np.mean(tables[0])) if tables else np.nan,
    }


@pytest.fixture(scope="module")
def metadata(batch):
    columns = {}
    for family, samples in batch.items():
        rows = [_metadata(sample) for sample in samples]
        columns[family] = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    return columns


def _auc(real, fake):
    values = np.concatenate([real, fake])
    known = np.isfinite(values)
    return float(roc_auc_score((np.arange(len(values)) >= len(real))[known], values[known]))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_file_says_of_itself_does_not_tell_fake_from_real(family, metadata):
    aucs = {name: _auc(metadata[REAL][name], metadata[family][name]) for name in metadata[REAL]}
    quality = aucs.pop("quality")
    assert {name: auc for name, auc in aucs.items() if not 0.4 <= auc <= 0.6} == {}
    # The quality pays for what the size does not show; it must not become the tell-tale instead.
    assert 0.3 <= quality <= 0.7


def test_at_least_seven_families_each_with_its_own_kinds():
    assert len(FAMILIES) >= 7
    assert len({family.kinds for family in FAMILIES.values()}) == len(FAMILIES)
    assert all(family.kinds for family in FAMILIES.values())


@pytest.mark.parametrize("family", [REAL, *FAMILIES])
def test_the_same_number_gives_the_same_file(family):
    assert make(3, "stream", family, 5) == make(3, "stream", family, 5)
    assert make(3, "stream", family, 5) != make(3, "stream", family, 6)
    assert make(3, "stream", family, 5) != make(4, "stream", family, 5)


def test_parallel_processes_give_the_files_that_one_process_gives():
    wanted = [(family, index) for family in (REAL, "blended", "autoencoded") for index in range(2)]
    seen = []
    parallel = list(make_many(1, "after", wanted, processes=2, progress=lambda *at: seen.append(at)))
    assert parallel == list(make_many(1, "after", wanted, processes=1))
    assert seen[-1] == (len(wanted), len(wanted))


def test_no_photograph_is_in_two_splits():
    everywhere = [path for paths in PHOTOGRAPHS.values() for path in paths]
    assert len(everywhere) == len(set(everywhere))
    assert all(path.is_file() for path in everywhere)


def test_splits_share_no_group(batch):
    train = {sample.group for samples in batch.values() for sample in samples}
    others = [
        {make(0, split, family, index).group for family in (REAL, "sharpened") for index in range(40)}
        for split in SPLITS
        if split != "train"
    ]
    assert not train & others[0]
    assert not train & others[1]
    assert not others[0] & others[1]


def test_every_scene_is_shown_once_and_reals_and_fakes_have_their_own(batch):
    scenes = [one.group for samples in batch.values() for one in samples if one.group.startswith("scene-")]
    assert len(scenes) == len(set(scenes))


def test_photographs_are_among_reals_and_fakes_alike(batch):
    shares = [
        np.mean([not sample.group.startswith("scene-") for sample in samples])
        for samples in (batch[REAL], [s for family in FAMILIES for s in batch[family]])
    ]
    assert min(shares) > 0.03
    assert max(shares) < 0.1


def test_a_piece_of_a_photograph_keeps_its_pixels_and_its_jpeg_grid():
    name, pixels = piece(np.random.default_rng(0), "after", 240, 272)
    path = next(path for path in PHOTOGRAPHS["after"] if f"photo-{path.stem}" == name)
    with Image.open(path) as image:
        whole = np.asarray(image.convert("RGB"))
    assert [
        (top, left)
        for top in range(0, whole.shape[0] - 239, GRID_PX)
        for left in range(0, whole.shape[1] - 271, GRID_PX)
        if np.array_equal(whole[top : top + 240, left : left + 272], pixels)
    ]


def test_a_name_tells_nothing_of_the_family(batch):
    names = [sample.name for samples in batch.values() for sample in samples]
    assert len(names) == len(set(names))
    assert not [name for name in names for family in FAMILIES if family in name]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forgery_changes_the_picture_and_keeps_its_shape(family):
    rng = np.random.default_rng(2)
    picture = rng.integers(0, 256, (60, 80, 1), dtype=np.uint8).repeat(4, 0).repeat(3, 1).repeat(3, 2)
    forged = FAMILIES[family].forge(rng, picture)
    assert forged.shape == picture.shape
    assert forged.dtype == np.uint8
    assert np.mean(forged != picture) > 0.1


def test_an_unknown_family_or_split_is_refused():
    with pytest.raises(KeyError):
        make(0, "train", "no-such-family", 0)
    with pytest.raises(KeyError):
        make(0, "no-such-split", REAL, 0)


def test_folders_are_family_group_file(tmp_path):
    assert write_folders(tmp_path, 0, "train", {REAL: 2, "smoothed": 1}, processes=1) == 3
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    expected = [make(0, "train", REAL, 0), make(0, "train", REAL, 1), make(0, "train", "smoothed", 0)]
    assert {path.as_posix() for path in files} == {f"{s.family}/{s.group}/{s.name}" for s in expected}


def test_the_digest_depends_on_the_seed():
    assert digest(0, count=1) != digest(1, count=1)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.local])
def test_a_family_that_forges_a_part_says_which(family):
    picture = source(np.random.default_rng(5), "train", 240, 256, photographs=0).picture
    forged = FAMILIES[family].forge_where(np.random.default_rng(7), picture)
    assert np.array_equal(forged.picture[forged.mask[..., 0] == 0], picture[forged.mask[..., 0] == 0])
    inside = forged.mask[..., 0] > 0.99
    assert np.mean(forged.picture[inside] != picture[inside]) > 0.3
    assert 0.2 < forged.mask.mean() < 0.7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_that_make_samples_end_with_the_one_that_asked(tmp_path, number):
    (script := tmp_path / "script.py").write_text(
        "from updater.benchmark.synthetic.stream import make_many\n"
        "if __name__ == '__main__':\n"
        "    for _ in make_many(0, 'train', [('real', index) for index in range(4096)], processes=2):\n"
        "        print('made', flush=True)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    asks = subprocess.Popen([sys.executable, script], **pipes, start_new_session=True)
    assert asks.stdout.readline() == b"made\n"
    started = psutil.Process(asks.pid).children(recursive=True)
    assert len(started) >= 3
    asks.send_signal(number)
    assert psutil.wait_procs(started, timeout=60)[1] == []
    asks.communicate()
