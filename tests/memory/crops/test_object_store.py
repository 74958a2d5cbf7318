"""Objects in a real S3 server: whole or not there, told in one line, within bounded time."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from s3_server import SECRET, use
from verdicts import look

from ingest.process.frame import WrongSettingError
from ingest.records import CropPlan, Decoded, Place, PlacesPlan, Region
from ingest.sandbox.crops import grid
from ingest.sandbox.extract import extract
from memory.crops import object_store
from memory.crops.object_store import ObjectStore, local_folder, require_files
from memory.crops.scans import (
    FEWEST_FRAMES,
    RealVideo,
    decode_frames,
    encode_frames,
    is_scanned,
    measure_features,
    scans,
)
from updater.distortions.clip_writing import to_h264


def place(url):
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix


@pytest.mark.slow
def test_an_object_is_what_was_written_until_it_is_deleted(bucket):
    store = ObjectStore(bucket)
    store.write("a/b", b"first")
    store.write("a/b", b"second")
    assert (store.read("a/b"), store.read("a/b", 2, 4), store.size("a/b")) == (b"second", b"co", 6)
    assert store.holds("a/b")
    store.delete("a/b")
    store.delete("a/b")
    assert not store.holds("a/b")
    with pytest.raises(FileNotFoundError):
        store.read("a/b")


@pytest.mark.slow
def test_more_objects_than_one_answer_lists_are_listed(bucket):
    store = ObjectStore(bucket)
    wanted = [f"ab/{number:04}" for number in range(1205)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.write(name, b"x"), [*wanted, "abc/other"]))
    assert sorted(store.names("ab")) == wanted
    assert len(store.names()) == 1206
    ages = [one.modified for one in store.list_objects("ab")]
    assert max(ages) - min(ages) < timedelta(minutes=5)


@pytest.mark.slow
def test_a_large_file_goes_in_parts_and_comes_back_whole(s3_server, bucket, tmp_path):
    store = ObjectStore(bucket)
    value = b"".join(number.to_bytes(4, "big") * 1024 for number in range(10 * 1024))
    (tmp_path / "large").write_bytes(value)
    store.upload(tmp_path / "large", "large")
    name, prefix = place(bucket)
    parts = s3_server.client.head_object(Bucket=name, Key=f"{prefix}/large")["ETag"].strip('"').split("-")
    assert parts[1:] == ["3"]
    store.download("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == value


@pytest.mark.slow
def test_an_upload_in_parts_that_was_never_ended_is_given_up_once_it_is_old(s3_server, bucket):
    store, client, (name, prefix) = ObjectStore(bucket), s3_server.client, place(bucket)
    client.create_multipart_upload(Bucket=name, Key=f"{prefix}/left")
    now = datetime.now(UTC)
    assert store.abort_uploads(now - timedelta(days=1)) == 0
    assert store.abort_uploads(now + timedelta(days=1)) == 1
    assert "Uploads" not in client.list_multipart_uploads(Bucket=name)


@pytest.mark.slow
def test_what_another_process_deleted_is_seen_at_once(s3_server, bucket):
    store, (name, prefix) = ObjectStore(bucket), place(bucket)
    store.write("ab/one", b"x")
    assert store.names("ab") == ["ab/one"]
    assert store.holds("ab/one")
    s3_server.client.delete_object(Bucket=name, Key=f"{prefix}/ab/one")
    assert not store.holds("ab/one")
    assert store.names("ab") == []


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_told_and_is_no_empty_one(bucket):
    gone = ObjectStore("s3://no-such-bucket/x")
    assert gone.hindrance() == "the object store has no bucket no-such-bucket"
    for act in (lambda: gone.names("ab"), lambda: gone.write("a", b"x")):
        with pytest.raises(OSError, match="bucket"):
            act()
    assert ObjectStore(bucket).hindrance() is None


@pytest.mark.slow
def test_a_wrong_secret_is_refused_in_one_line_that_tells_no_secret(s3_server, bucket, monkeypatch):
    assert ObjectStore(bucket).hindrance() is None
    use(monkeypatch, s3_server.endpoint, "another-secret")
    problem = ObjectStore(bucket).hindrance()
    assert problem is not None
    assert "refused" in problem
    assert "\n" not in problem
    assert "another-secret" not in problem
    assert SECRET not in problem
    with pytest.raises(OSError, match="refused"):
        ObjectStore(bucket).write("name", b"x")


@pytest.mark.slow
def test_an_endpoint_that_is_none_or_where_nobody_listens_is_told(bucket, monkeypatch):
    for endpoint in ("no endpoint", "http://127.0.0.1:1"):
        use(monkeypatch, endpoint)
        problem = ObjectStore(bucket).hindrance()
        assert problem is not None
        assert "\n" not in problem


@pytest.mark.slow
def test_a_server_that_is_too_slow_costs_bounded_time(line, bucket, monkeypatch):
    store = ObjectStore(bucket)
    line.delay_s = 0.2
    store.write("name", b"x")
    assert store.hindrance() is None
    line.delay_s = 60
    began = time.monotonic()
    assert store.hindrance() == "the object store did not answer within 3 s"
    monkeypatch.setattr(object_store, "CALL_S", 1.0)
    for act in (lambda: store.read("name"), lambda: store.write("other", b"x"), lambda: store.holds("name")):
        with pytest.raises(OSError, match="did not answer"):
            act()
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_server_that_fails_for_a_while_is_a_fault_of_one_line_and_then_none(line, bucket):
    store = ObjectStore(bucket)
    line.fails = True
    for act in (lambda: store.write("name", b"x"), lambda: store.holds("name"), lambda: store.names()):
        with pytest.raises(OSError, match="503") as caught:
            act()
        assert not isinstance(caught.value, FileNotFoundError)
        assert "\n" not in str(caught.value)
    line.fails = False
    store.write("name", b"x")
    assert store.holds("name")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2**20, 40 * 2**20])
def test_a_put_that_breaks_off_half_way_leaves_nothing_under_its_name(line, bucket, tmp_path, size):
    store, path = ObjectStore(bucket), tmp_path / "file"
    path.write_bytes(b"x" * size)
    line.breaks_after = size // 2 if size < 2**24 else 2**23
    with pytest.raises(OSError, match="object store"):
        store.upload(path, "name")
    line.breaks_after = None
    assert not store.holds("name")
    assert store.names() == []
    store.upload(path, "name")
    assert store.size("name") == size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "said"),
    [("nothing://x", "no kind of URL"), ("s3://", "bucket is missing"), ("s3:///x", "bucket is missing")],
)
def test_a_url_that_opens_nothing_is_a_wrong_setting(url, said):
    with pytest.raises(WrongSettingError, match=f"FORGEWATCH_X_URL: .*{said}"):
        require_files("FORGEWATCH_X_URL", url)


@pytest.mark.slow
def test_a_folder_is_told_from_an_object_store():
    assert local_folder("a/b") == Path("a/b").absolute()
    assert local_folder("file:///a/b") == Path("/a/b")
    assert local_folder("s3://a/b") is None


# What is kept of a real video at import is what a release would scan; what fails costs no more than that.
PLAN = CropPlan(crop_px=64)
SIZE = (200, 144)


class InThisProcess:
    """Decodes as a sandbox does, where nobody has to be kept out."""

    def submit(self, media, plan):
        return look(lambda: media, plan)


def clip(frames=24):
    scene = np.random.default_rng(0).integers(0, 256, (18, 28, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    return to_h264(np.stack([scene[:, k % 20 : k % 20 + 200] for k in range(frames)]), 30, "mp4")


def first_look(*, length=24, face=False, kind="video"):
    each = len(grid(*SIZE, PLAN.crop_px, PLAN.patches))
    regions = [
        Region("frame", (0, 0, *SIZE), 3 * n, n / 8, tuple(range(n * each, (n + 1) * each))) for n in range(8)
    ]
    if face:
        regions.append(Region("face", (130, 70, 60, 60), 0, 0.0, (0,)))
    crops = np.zeros((8 * each, 64, 64, 3), np.uint8)
    return Decoded(kind, "mp4", *SIZE, 8, crops, tuple(regions), tuple(range(0, 24, 3)), length)


def restless_at(place):
    """Measures so that one place of the grid changes most from frame to frame."""
    each = len(grid(*SIZE, PLAN.crop_px, PLAN.patches))

    def measure(items):
        rows = np.ones((len(items), 5), np.float32)
        rows[place::each] += np.arange(len(rows[place::each]), dtype=np.float32)[:, None]
        return rows

    return measure


def kept(data, decoded, place=0):
    (rows,) = measure_features([decoded], restless_at(place), [True])
    found = scans({"a": RealVideo("real/a.mp4", data, decoded, rows)}, InThisProcess(), PLAN)
    return {name: decode_frames(value) for name, value in found.items()}


@pytest.mark.parametrize("place", [0, 4])
def test_a_video_without_a_face_is_kept_where_it_changes_most(place):
    left, top = grid(*SIZE, PLAN.crop_px, PLAN.patches)[place]
    frames = kept(clip(), first_look(), place)["a"]
    looked = extract(clip(), scans_plan(left, top, 24), 10**6).crops
    np.testing.assert_array_equal(frames, looked)


def scans_plan(left, top, frames):
    return PlacesPlan(crop_px=64, places=tuple(Place(number, left, top) for number in range(frames)))


def test_a_video_with_a_face_is_kept_along_the_face():
    frames = kept(clip(), first_look(face=True))["a"]
    np.testing.assert_array_equal(frames, extract(clip(), scans_plan(128, 64, 24), 10**6).crops)


def test_at_most_96_frames_of_a_long_video_are_kept():
    assert len(kept(clip(200), first_look(length=200))["a"]) == 96


def test_what_fails_or_has_too_few_frames_after_all_is_left_out():
    assert kept(b"no video", first_look()) == {}
    assert kept(clip(FEWEST_FRAMES - 1), first_look()) == {}
    assert len(kept(clip(FEWEST_FRAMES), first_look())["a"]) == FEWEST_FRAMES


def test_only_real_videos_are_scanned():
    assert is_scanned("real", first_look())
    assert not is_scanned("gan", first_look())
    assert not is_scanned("real", first_look(kind="image"))
    assert not is_scanned("real", first_look(length=FEWEST_FRAMES - 1))


def test_an_items_features_are_the_mean_of_its_rows_whether_it_is_scanned_or_not():
    def measure(items):
        return np.stack([item.mean((0, 1, 2), dtype=np.float32)[:1] for item in items])

    rng = np.random.default_rng(0)
    one = first_look()
    one.crops[:] = rng.integers(0, 256, one.crops.shape)
    apart, together, face = measure_features([one, one, first_look(face=True)], measure, [True, False, True])
    assert (apart.shape, together.shape, face.shape) == ((len(one.crops), 1), (1, 1), (1, 1))
    assert apart.mean() == pytest.approx(together.mean(), rel=1e-4)


@pytest.mark.parametrize("shape", [(1, 16, 16, 3), (24, 64, 64, 3), (3, 33, 33, 3)])
def test_frames_come_back_to_the_bit_and_the_same_ones_give_the_same_bytes(shape):
    frames = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    value = encode_frames(frames)
    np.testing.assert_array_equal(decode_frames(value), frames)
    assert encode_frames(frames) == value


def test_frames_that_follow_on_one_another_take_a_fraction():
    scene = np.random.default_rng(0).integers(0, 256, (80, 200, 3), np.uint8)
    frames = np.stack([scene[:64, k : k + 64] for k in range(32)])
    assert len(encode_frames(frames)) < frames.nbytes / 8


@pytest.mark.parametrize(
    "value", [b"", b"no frames at all", encode_frames(np.zeros((2, 16, 16, 3), np.uint8))[:60]]
)
def test_what_holds_no_frames_is_refused(value):
    with pytest.raises(ValueError, match="holds no frames"):
        decode_frames(value)
