"""A clip is imported as one exemplar; of a real one, one crop a frame is kept beside its crops."""

import hashlib
import io

import av
import numpy as np
import pytest
from published import lay, picture
from sqlalchemy import insert, literal, select

from deploy.client.importing import import_folder
from ingest.sandbox.crops import grid
from ingest.sandbox.decode import DecodeError
from memory import rows
from memory.crops import scans
from memory.crops.scans import decode_frames
from memory.retention import sweep
from memory.schema import exemplars
from updater.distortions.clip_writing import to_h264
from updater.progress import no_steps

pytestmark = pytest.mark.slow


def silent(done, total):
    """No one listens."""


def clip(number, frames=24):
    """A clip of 200 x 144 px, whose scene moves."""
    scene = np.random.default_rng(number).integers(0, 256, (18, 28, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    return to_h264(np.stack([scene[:, k % 24 : k % 24 + 200] for k in range(frames)]), 30, "mp4")


def test_a_clip_is_one_exemplar_of_crops_of_several_frames_and_lies_beside_pictures(tmp_path, api, services):
    files = {f"real/{i}.mp4": clip(i) for i in range(4)} | {f"real/{i}.png": picture(i) for i in range(4)}
    files |= {f"gan/film-{i // 2}/{i}.mp4": clip(10 + i) for i in range(4)}
    # Of a clip that breaks off, the frames before that are good; one without an end has none.
    files |= {"gan/film-1/still.mp4": clip(20, 1), "gan/cut.mp4": clip(21)[:200]}
    done = import_folder(lay(tmp_path / "data", files), api, silent)
    assert done.new == {"real": 8, "gan": 5}
    assert [skipped.path for skipped in done.skipped] == ["gan/cut.mp4"]
    with services.memory.read() as connection:
        exemplars = {e.media_digest: e for e in rows.select_exemplars(connection)}
    found = {
        name: exemplars[digest]
        for name, data in files.items()
        if (digest := hashlib.sha256(data).hexdigest()) in exemplars
    }
    crops = {name: len(services.crops.load(str(e.crops_digest))) for name, e in found.items()}
    # As many of each frame as of a picture of its size, of eight frames.
    assert crops["real/0.mp4"] == 8 * crops["gan/film-1/still.mp4"] > crops["real/0.png"]
    assert {found[f"gan/film-1/{name}"].group for name in ("2.mp4", "3.mp4", "still.mp4")} == {"film-1"}
    assert all(len({e.split for e in found.values() if e.group == one.group}) == 1 for one in found.values())
    assert import_folder(tmp_path / "data", api, silent).already == 13


def frames_kept(services, files):
    """What lies beside the crops of each file: one crop a frame, or nothing."""
    with services.memory.read() as connection:
        digests = {e.media_digest: str(e.crops_digest) for e in rows.select_exemplars(connection)}
    found = {}
    for name, data in files.items():
        scan = services.crops.load_views(digests[hashlib.sha256(data).hexdigest()]).scan
        found[name] = None if scan is None else decode_frames(scan)
    return found


def test_of_real_clips_alone_one_crop_a_frame_is_kept_as_it_would_be_scanned(tmp_path, api, services):
    files = {"real/long.mp4": clip(0, 120), "real/24.mp4": clip(1), "real/short.mp4": clip(2, 17)}
    files |= {"gan/1.mp4": clip(3), "real/1.png": picture(0)}
    assert import_folder(lay(tmp_path / "data", files), api, silent).skipped == []
    found = frames_kept(services, files)
    shapes = {name: None if frames is None else frames.shape for name, frames in found.items()}
    assert shapes == {
        "real/long.mp4": (96, 128, 128, 3),
        "real/24.mp4": (24, 128, 128, 3),
        "real/short.mp4": None,
        "gan/1.mp4": None,
        "real/1.png": None,
    }
    # To the bit what the clip shows at one place, in the order of its frames.
    with av.open(io.BytesIO(files["real/24.mp4"])) as opened:
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)])
    corners = grid(200, 144, 128, 9)
    assert any(
        np.abs(found["real/24.mp4"].astype(int) - shown[:, top : top + 128, left : left + 128]).max() <= 2
        for left, top in corners
    )
    sweep(services.memory, services.crops)
    assert frames_kept(services, files).keys() == files.keys()


def test_a_real_clip_that_cannot_be_looked_at_again_is_still_imported(tmp_path, api, services, monkeypatch):
    def refuse(data):
        raise DecodeError("timeout", "the second look takes too long")

    monkeypatch.setattr(scans, "encode_frames", refuse)
    files = {"real/1.mp4": clip(0), "real/1.png": picture(0)}
    done = import_folder(lay(tmp_path / "data", files), api, silent)
    assert (done.new, done.skipped) == ({"real": 2}, [])
    assert set(frames_kept(services, files).values()) == {None}


# An import that calls the same bytes another class says so, file by file, and what to do.
def test_the_same_bytes_in_two_folders_are_taken_once_and_the_other_is_told(tmp_path, api):
    done = import_folder(
        lay(tmp_path / "data", {"gan/a.png": picture(405), "real/b.png": picture(405)}), api, no_steps
    )
    assert done.new == {"gan": 1}
    assert [(s.path, s.reason) for s in done.skipped] == [
        ("real/b.png", "the same bytes are imported as gan, from gan/a.png: leave one of the two out")
    ]


def test_media_that_a_person_called_otherwise_in_the_stream_is_left_out_with_advice(tmp_path, api, services):
    folder = lay(tmp_path / "data", {"real/first.png": picture(0)})
    import_folder(folder, api, no_steps)
    lay(folder, {"real/again.png": picture(500), "gan/again.png": picture(501)})
    # As if these two had come by the stream, and a person had called them blend and gan.
    with services.memory.write() as connection:
        for number, family in ((500, "blend"), (501, "gan")):
            own = {
                "id": literal(f"media-0-{number}"),
                "family": literal(family),
                "media_digest": literal(hashlib.sha256(picture(number)).hexdigest()),
            }
            columns = [column.name for column in exemplars.c]
            row = select(*(own.get(name, exemplars.c[name]) for name in columns)).limit(1)
            connection.execute(insert(exemplars).from_select(columns, row))
    done = import_folder(folder, api, no_steps)
    (skipped,) = done.skipped
    assert skipped.path == "real/again.png"
    assert "the same bytes are in the memory as blend" in skipped.reason
    assert skipped.reason.endswith("forgewatch label media-0-500 real")
    assert (done.new, done.already) == ({"gan": 1}, 1)
