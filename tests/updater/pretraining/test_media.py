from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ingest.records import CropPlan
from updater.pretraining.media import PretrainingError, read_media

PLAN = CropPlan(crop_px=64, face_patches=0)


def lay(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        levels = np.random.default_rng(number).integers(0, 256, (64, 128, 3)).astype(np.uint8)
        Image.fromarray(levels).save(folder / name)
    return folder


def test_folders_below_are_sources_and_what_is_no_picture_is_counted(tmp_path: Path) -> None:
    lay(tmp_path, "a.png", "phone/b.png", "phone/deep/c.jpg", ".hidden/d.png")
    (tmp_path / "note.txt").write_text("no picture")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    media = read_media(tmp_path, PLAN, 0)
    assert sorted(media.sources) == ["", "phone", "phone"]
    assert [media.crops.shape, list(np.bincount(media.owners)), media.over] == [(6, 64, 64, 3), [2, 2, 2], 0]
    told = " ".join(sorted(media.unreadable))
    assert "gone.png: cannot be read (No such file or directory) note.txt: " in told


def test_enough_is_enough_and_another_seed_reads_others(tmp_path: Path) -> None:
    lay(tmp_path, *(f"{number}.png" for number in range(8)))
    media = read_media(tmp_path, PLAN, 0, most_crops=4)
    assert (len(media.sources), media.over) == (2, 6)
    other = read_media(tmp_path, PLAN, 1, most_crops=4)
    assert not np.array_equal(media.crops, other.crops)


@pytest.mark.parametrize(
    ("files", "told"),
    [(None, "is no folder"), ((), "holds no files"), (("note.txt",), "none of the 1 files below")],
)
def test_a_folder_of_nothing_is_refused_in_one_line(
    tmp_path: Path, files: tuple[str, ...] | None, told: str
) -> None:
    folder = tmp_path / "media"
    if files is not None:
        folder.mkdir()
    for name in files or ():
        (folder / name).write_text("no picture")
    with pytest.raises(PretrainingError, match=told) as raised:
        read_media(folder, PLAN, 0)
    assert "\n" not in str(raised.value)
