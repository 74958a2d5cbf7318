import hashlib
import io
import os
import tarfile
from collections import Counter, defaultdict

import av
import numpy as np
import pytest
from PIL import Image
from published import TREES, lay, picture
from sqlalchemy import insert, literal, select

from deploy.cli.main import main
from deploy.client import importing
from deploy.client.connection import ServerRefusedError, ServerUnavailableError
from deploy.client.http import Client
from deploy.client.importing import ImportFolderError, import_folder
from deploy.settings import DeploySettings
from ingest.sandbox.crops import grid
from ingest.sandbox.decode import DecodeError
from memory import rows
from memory.crops import scans
from memory.crops.crop_store import CropStore
from memory.crops.scans import decode_frames
from memory.retention import sweep
from memory.schema import exemplars
from memory.store import StoreUnavailableError
from updater.data.layouts.layouts import labelled_files
from updater.distortions.clip_writing import to_h264
from updater.progress import no_steps

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    files = {f"0_real/scene-{i // 2}/{i}.png": picture(i) for i in range(6)}
    files |= {f"gan/scene-{i // 2}/{i}.png": picture(100 + i) for i in range(6)}
    files |= {f"blend/{i}.png": picture(200 + i) for i in range(3)}
    return lay(tmp_path / "data", files)


def take(folder, api):
    seen = []
    done = import_folder(folder, api, lambda n, total: seen.append((n, total)))
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(done.new.values()) + done.already + len(done.skipped)
    return done


def test_folders_become_labelled_exemplars_with_their_groups(folder, api, services):
    done = take(folder, api)
    assert done.new == {"real": 6, "gan": 6, "blend": 3}
    assert done.skipped == []
    with services.memory.read() as connection:
        found = rows.select_exemplars(connection)
    assert Counter(str(e.family) for e in found) == done.new
    splits = {}
    for e in found:
        splits.setdefault(e.group, set()).add(e.split)
        assert services.crops.load(str(e.crops_digest)).shape[1:] == (128, 128, 3)
        assert e.source == "import:data"
    digests = [e.media_digest for e in found]
    assert set(api.test_media(digests)) == {e.media_digest for e in found if e.split == "test"}
    assert {f"scene-{i}" for i in range(3)} < splits.keys()
    assert all(len(sides) == 1 for sides in splits.values())


def test_a_part_may_take_longer_than_other_requests(api, monkeypatch):
    monkeypatch.setattr("deploy.client.connection._TIMEOUT_S", 1e-4)
    with pytest.raises(ServerUnavailableError):
        api.labels()
    assert api.add_files("data", importing._archive([("real/0.png", picture(0))]), {}).new == {"real": 1}


@pytest.fixture
def keeps_pictures(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_MEMORY_PICTURE_PX", "32")


@pytest.mark.usefixtures("keeps_pictures")
def test_an_import_keeps_whole_pictures_where_the_memory_is_to_keep_them(tmp_path, api, services):
    take(lay(tmp_path / "data", {"gan/1.png": picture(1)}), api)
    with services.memory.read() as connection:
        (exemplar,) = rows.select_exemplars(connection)
    crops, shown, _ = services.crops.load_views(str(exemplar.crops_digest))
    assert crops.shape[1:] == (128, 128, 3)
    whole = Image.open(io.BytesIO(picture(1))).resize((32, 32), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(shown, np.asarray(whole))


def test_to_import_again_adds_only_what_is_new(folder, api, services):
    take(folder, api)
    again = take(folder, api)
    assert (again.new, again.already, again.labels) == ({}, 15, {})
    lay(folder, {"gan/late.png": picture(300)})
    assert take(folder, api).new == {"gan": 1}


def test_bad_files_are_named_with_the_reason_and_the_others_come_in(folder, api, services):
    bad = {
        "gan/empty.png": b"",
        "gan/text.png": b"no picture",
        "gan/cut.png": picture(400)[:300],
        "gan/huge.png": b"x" * 100_001,
        "gan/twin.png": picture(200),
        "Bad Name/a.png": picture(401),
        "ignore/a.png": picture(402),
        "stray.png": picture(403),
        "gan/train/0_real/a.png": picture(405),
        "real/1_fake/a.png": picture(406),
        ".hidden/a.png": picture(404),
    }
    done = take(lay(folder, bad), api)
    assert done.new == {"real": 6, "gan": 6, "blend": 3}
    reasons = {s.path: s.reason for s in done.skipped}
    assert reasons.keys() == bad.keys() - {".hidden/a.png"}
    assert "the same bytes are in the memory as blend" in reasons["gan/twin.png"]
    assert "is no family name" in reasons["Bad Name/a.png"]
    assert "its folder 0_real contradicts gan" in reasons["gan/train/0_real/a.png"]
    assert "too_large" in reasons["gan/huge.png"]
    assert not any("\n" in reason for reason in reasons.values())


def test_an_import_is_undone_class_by_class(folder, api, services):
    done = take(folder, api)
    api.undo(done.labels["gan"])
    with services.memory.read() as connection:
        assert rows.counts(connection)[("unknown", None)] == 6


def test_an_import_of_several_parts_has_one_label_a_class(folder, api, monkeypatch):
    monkeypatch.setattr(importing, "_PART_FILES", 2)
    done = take(folder, api)
    assert done.new == {"real": 6, "gan": 6, "blend": 3}
    assert {entry.what: entry.exemplars for entry in api.labels()} == done.new


def test_an_interrupted_import_goes_on_where_it_stopped_and_sends_nothing_twice(tmp_path, api, monkeypatch):
    folder = lay(tmp_path / "data", {f"gan/{i:03}.png": picture(i) for i in range(70)})
    monkeypatch.setattr(importing, "_PART_FILES", 10)
    written = 0
    put = CropStore.put

    def break_off(self, *views):
        nonlocal written
        written += 1
        if written > 50:
            raise StoreUnavailableError("the disk went away")
        return put(self, *views)

    with monkeypatch.context() as broken:
        broken.setattr(CropStore, "put", break_off)
        with pytest.raises(ServerUnavailableError, match="the disk went away"):
            take(folder, api)
    sent = []
    send = importing._send

    def counted(*arguments):
        sent.append(len(arguments[3]))
        return send(*arguments)

    monkeypatch.setattr(importing, "_send", counted)
    done = take(folder, api)
    assert (done.new, done.already, sum(sent)) == ({"gan": 20}, 50, 20)


def test_a_part_over_the_servers_limit_is_halved_and_only_a_file_that_is_too_large_is_left_out(tmp_path, api):
    files = {f"gan/{i}.png": picture(i) for i in range(20)} | {"gan/vast.bin": b"x" * 400_000}
    done = take(lay(tmp_path / "data", files), api)
    assert done.new == {"gan": 20}
    assert [(skipped.path, "too large" in skipped.reason) for skipped in done.skipped] == [
        ("gan/vast.bin", True)
    ]


def test_a_label_of_somebody_else_is_not_extended(folder, api, served):
    done = take(folder, api)
    late = lay(folder.parent / "late", {"gan/late.png": picture(300)})
    with Client(DeploySettings(url=served), "eve") as other:
        archive = importing._archive([("gan/late.png", (late / "gan/late.png").read_bytes())])
        with pytest.raises(ServerRefusedError, match=f"label {done.labels['gan']} is none that eve began"):
            other.add_files("late", archive, {"gan": done.labels["gan"]})


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_an_archive_of_anything_but_plain_files_is_refused(api, kind):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("gan/a.png")
        member.type, member.linkname = kind, "/etc/hostname"
        archive.addfile(member)
    with pytest.raises(ServerRefusedError, match="no plain file"):
        api.add_files("data", out.getvalue(), {})


@pytest.mark.parametrize("body", [b"", b"no archive", b"\x1f\x8b" + bytes(600)])
def test_what_is_no_archive_is_refused(api, body):
    with pytest.raises(ServerRefusedError, match="tar"):
        api.add_files("data", body, {})


@pytest.mark.parametrize(("name", "source"), [("data", "release\n0"), ("\x1b[2J", None)])
def test_a_source_has_no_control_characters_as_in_the_stream(api, name, source):
    with pytest.raises(ServerRefusedError, match=r"source|name"):
        api.add_files(name, importing._archive([("real/0.png", picture(0))]), {}, source)


def test_a_folder_without_files_is_refused(tmp_path, api):
    for wrong in (tmp_path / "nowhere", lay(tmp_path / "empty", {".keep": b""})):
        with pytest.raises(ImportFolderError):
            take(wrong, api)


def test_a_file_whose_name_is_no_text_is_named_as_far_as_it_is(tmp_path, api):
    folder = lay(tmp_path / "data", {"gan/a.png": picture(1)})
    (folder / "gan" / os.fsdecode(b"b\xff.png")).write_bytes(picture(2))
    done = take(folder, api)
    assert (done.new, [skipped.path for skipped in done.skipped]) == ({"gan": 1}, ["gan/b?.png"])


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_a_set_becomes_exemplars_with_families_and_each_group_on_one_side(name, tmp_path, api, services):
    folder = TREES[name](tmp_path / name)
    files, _ = labelled_files(name, folder)
    done = import_folder(folder, api, no_steps, files)
    assert done.skipped == []
    assert sum(done.new.values()) == len(files)
    with services.memory.read() as connection:
        exemplars = rows.select_exemplars(connection)
    assert {str(exemplar.family) for exemplar in exemplars} == set(done.new)
    assert {exemplar.source for exemplar in exemplars} == {f"import:{name}"}
    sides = defaultdict(set)
    for exemplar in exemplars:
        sides[exemplar.group].add(exemplar.split)
    assert all(len(of_group) == 1 for of_group in sides.values())
    assert {place.split("/")[1] for place, _ in files if place.count("/") > 1} <= sides.keys()
    assert import_folder(folder, api, no_steps, files).already == len(files)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--layout", "dfcd"), 2, "--layout dfcd is none: choose of cddb, deepfakebench, dfdc"),
        (("--layout", "dfdc"), 1, "has no dfdc_train_part_N/metadata.json and no test/labels.csv"),
        (("--layout", "forgerynet"), 1, "name the folder that holds Training and Validation"),
    ],
)
def test_a_mistyped_layout_and_a_folder_that_is_none_of_it_are_one_line(words, code, said, tmp_path, capsys):
    assert main(["import", str(tmp_path), *words]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


# A clip is imported as one exemplar; of a real one, one crop a frame is kept beside its crops.
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
