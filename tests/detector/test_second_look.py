"""What is not called real is looked at again, for a map of where; a verdict never waits for its map."""

import base64
import ctypes
import hashlib
import io
import re
import types
from concurrent.futures import Future
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from verdicts import look, make_evidence, make_item, make_region, make_verdict

from detector.batch import RecordMedia, open_batch
from detector.release.crop_graphs import CELLS, OF_PICTURE, MapContract
from detector.second_look import run_second_pass
from detector.second_pass.map_look import MapLook
from detector.serving.rollout import Route
from detector.serving.torchserve import TorchServeRefusedError, TorchServeUnavailableError
from detector.verdicts import JudgedItem
from ingest.records import InRecord, MediaError, MediaPlan
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings

CONTRACT = MapContract(crop_px=64, threshold=0.5, reals_marked=0.0, reals=20, export_difference=0.0)


def with_maps(given, contract, look, ask, *, also_real=False, **more):
    looks = [MapLook(contract, ask, also_real=also_real)]
    return [one.verdict for one in run_second_pass(given, looks, look, **more)]


def picture(width=200, height=136):
    """Black, with a white square whose corners are (80, 40) and (120, 72)."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[40:72, 80:120] = 255
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def white(request):
    """A localizer to which white is forged."""
    crops = request["crops"]
    return {CELLS: crops[..., 0].reshape(len(crops), 8, 8, 8, 8).mean((2, 4)).astype(np.float32) / 255}


def seen(label="fake", data=None, offset=0, now=None, **changes):
    """An item; now: what its media has become since the first look."""
    first = data or picture()
    item = make_item(offset, digest=hashlib.sha256(first).hexdigest())
    usual = {"label": label, "width": 200, "height": 136}
    return JudgedItem(make_verdict(item, **usual | changes), make_evidence(), lambda: now or first)


def cells_of(png):
    return np.asarray(Image.open(BytesIO(base64.b64decode(png))))


def test_the_map_shows_where_the_picture_is_forged():
    (verdict,) = with_maps([seen()], CONTRACT, look, white)
    cells = cells_of(verdict.map.png)
    assert cells.shape == (17, 25)
    expected = np.zeros((17, 25))
    expected[5:9, 10:15] = 255
    np.testing.assert_array_equal(cells, expected)
    assert (verdict.map.box, verdict.map.part) == ((80, 40, 40, 32), (0, 0, 200, 136))
    assert verdict.map.share == pytest.approx(20 / (17 * 25))
    assert (verdict.map.cell_px, verdict.map.threshold, verdict.map.frame) == (8, 0.5, 0)
    assert verdict.timings.map_s > 0


def test_what_is_called_real_is_mapped_only_where_it_is_asked_for():
    def refuse(media, plan, spent_s):
        raise AssertionError("looked at again")

    given = seen("real")
    assert with_maps([given], CONTRACT, refuse, white) == [given.verdict]
    (asked_for,) = with_maps([given], CONTRACT, look, white, also_real=True)
    assert asked_for.map is not None


def test_verdicts_keep_their_order_and_all_else_that_they_say():
    given = [seen(label, offset=offset) for offset, label in enumerate(["unknown", "real", "fake"])]
    verdicts = with_maps(given, CONTRACT, look, white)
    assert [verdict.map is None for verdict in verdicts] == [False, True, False]
    bare = [verdict.model_copy(update={"map": None, "timings": None}) for verdict in verdicts]
    assert bare == [one.verdict.model_copy(update={"timings": None}) for one in given]


def test_a_video_is_mapped_in_the_frame_that_looks_most_forged():
    frames = [Image.fromarray(np.full((136, 200, 3), 51 * number, np.uint8)) for number in range(5)]
    buffer = BytesIO()
    frames[0].save(buffer, "PNG", save_all=True, append_images=frames[1:])
    regions = tuple(
        make_region(kind, frame, (0, 0, 200, 136), probability)
        for kind, frame, probability in (("frame", 1, 0.2), ("frame", 3, 0.9), ("face", 4, 0.99))
    )
    (verdict,) = with_maps([seen(data=buffer.getvalue(), regions=regions)], CONTRACT, look, white)
    assert verdict.map.frame == 3
    assert set(np.unique(cells_of(verdict.map.png))) == {153}


def failing(error):
    def fail(*_):
        raise error

    return fail


def lost(error):
    def submit(media, plan, spent_s):
        future = Future()
        future.set_exception(error)
        return future

    return submit


@pytest.mark.parametrize(
    ("look_at", "ask"),
    [
        (lost(DecodeError("timeout", "slow")), white),
        (lost(MediaError("missing", "the claim check's file is gone")), white),
        (lost(SandboxUnavailableError("busy")), white),
        (look, failing(TorchServeRefusedError("HTTP 400"))),
        (look, failing(TorchServeUnavailableError("no answer"))),
        (look, lambda request: {CELLS: np.zeros((1, 3, 3), np.float32)}),
        (look, failing(RuntimeError("what a runtime raises"))),
        (failing(OSError(24, "too many open files")), white),
    ],
)
def test_a_second_look_that_fails_leaves_the_verdict_as_it_was(look_at, ask, caplog):
    given = seen()
    assert with_maps([given], CONTRACT, look_at, ask) == [given.verdict]


def test_a_map_is_of_the_media_that_the_verdict_is_of():
    given = seen(now=picture(200, 137))
    assert with_maps([given], CONTRACT, look, white) == [given.verdict]


def test_a_frame_of_another_size_than_the_first_has_no_map():
    given = seen(width=300, height=200)
    assert with_maps([given], CONTRACT, look, white) == [given.verdict]


def test_crops_that_no_plan_takes_leave_the_verdict_as_it_was():
    given = seen()
    wide = CONTRACT.model_copy(update={"crop_px": 2048})
    assert with_maps([given], wide, look, white) == [given.verdict]


def test_the_worker_shows_that_it_lives_before_each_map_that_it_awaits():
    beats = []
    with_maps([seen(offset=n) for n in range(3)], CONTRACT, look, white, beat=lambda: beats.append(1))
    assert len(beats) == 3


def test_one_item_without_a_map_takes_none_from_the_others():
    items = [seen(offset=0), seen(data=b"no media", offset=1), seen(offset=2)]
    verdicts = with_maps(items, CONTRACT, look, white)
    assert [verdict.map is None for verdict in verdicts] == [False, True, False]

    odd = seen(data=picture(64, 64), offset=1, width=64, height=64)

    def ask(request):
        if 1 in np.unique(request[OF_PICTURE], return_counts=True)[1]:
            raise TorchServeRefusedError("HTTP 413")
        return white(request)

    verdicts = with_maps([seen(), odd, seen(offset=2)], CONTRACT, look, ask)
    assert [verdict.map is None for verdict in verdicts] == [False, True, False]


def test_maps_of_several_items_are_asked_for_in_one_request_of_as_many_crops_as_it_takes():
    asked = []

    def ask(request):
        asked.append(np.unique(request[OF_PICTURE], return_counts=True)[1].tolist())
        return white(request)

    items = [seen(offset=number) for number in range(5)]
    apart = with_maps(items, CONTRACT, look, white)
    crops = len(MapLook(CONTRACT, white).plan(items[0]).places)
    looks = [MapLook(CONTRACT, ask, max_request_bytes=3 * 64**2 * (2 * crops + 1))]
    together = [item.verdict for item in run_second_pass(items, looks, look)]
    assert asked == [[crops, crops], [crops, crops], [crops]]
    assert [verdict.map for verdict in together] == [verdict.map for verdict in apart]
    assert [verdict.id for verdict in together] == [item.verdict.id for item in items]
    assert min(verdict.timings.map_s for verdict in together) > 0


def test_what_takes_too_long_while_records_wait_is_left_out_and_the_verdict_says_so():
    items = [seen(offset=number) for number in range(3)] + [seen("real", offset=3)]
    untouched = []
    verdicts = with_maps(items, CONTRACT, lambda *at: untouched.append(at), white, seconds=0.0)
    assert untouched == []
    assert [verdict.left_out for verdict in verdicts] == [("map",)] * 3 + [()]
    assert [verdict.map for verdict in verdicts] == [None] * 4

    queued = []

    def slow(media, plan, spent_s):
        queued.append(look(media, plan, spent_s) if not queued else Future())
        return queued[-1]

    def late(request):
        monkeypatched.append(100.0)
        return white(request)

    monkeypatched = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("detector.second_look.time.monotonic", lambda: monkeypatched[-1])
        one_a_request = MapLook(CONTRACT, late, max_request_bytes=1)
        verdicts = [item.verdict for item in run_second_pass(items, [one_a_request], slow, seconds=1.0)]
    assert [verdict.left_out for verdict in verdicts] == [(), ("map",), ("map",), ()]
    assert verdicts[0].map is not None
    assert [decoding.cancelled() for decoding in queued] == [False, True, True]


def test_where_torchserve_does_not_answer_the_items_behind_are_not_asked_for():
    asked = []

    def down(request):
        asked.append(len(request["crops"]))
        raise TorchServeUnavailableError("no answer")

    queued = []

    def later(media, plan, spent_s):
        queued.append(look(media, plan, spent_s) if not queued else Future())
        return queued[-1]

    items = [seen(offset=offset) for offset in range(3)]
    one_a_request = MapLook(CONTRACT, down, max_request_bytes=1)
    assert run_second_pass(items, [one_a_request], later) == items
    assert len(asked) == 1
    assert [decoding.cancelled() for decoding in queued] == [False, True, True]
    assert run_second_pass(items, [MapLook(CONTRACT, down)], look) == items
    assert len(asked) == 2


# Small records that name large files: the worker holds one file at a time, however many a batch names.
FILE_BYTES, RECORDS = 30_000_000, 16


@pytest.fixture
def settings(tmp_path):
    picture = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(picture, "PNG")
    for name, head in (("decodes", picture.getvalue()), ("fails", b"\x89PNG\r\n\x1a\n")):
        (tmp_path / name).write_bytes(head + bytes(FILE_BYTES - len(head)))
    return IngestSettings(claim_check_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decodes", "fails"])
def test_many_records_that_name_one_large_file_cost_its_size_and_little_more(settings, name):
    with Sandbox(settings) as sandbox:
        assert peak_bytes(sandbox, settings, records(settings, name)) < 3 * FILE_BYTES


@pytest.mark.slow
def test_media_that_is_taken_at_once_is_held_at_once(settings, monkeypatch):
    submit, held = Sandbox.submit, []

    def submit_at_once(self, media, plan):
        held.append(media())  # however quick the decoding is, as it would be of media that wait for it
        return submit(self, held[-1], plan)

    monkeypatch.setattr(Sandbox, "submit", submit_at_once)
    with Sandbox(settings) as sandbox:
        assert peak_bytes(sandbox, settings, records(settings, "decodes")) > 8 * FILE_BYTES


@pytest.mark.slow
def test_media_is_what_its_item_says_once_it_is_called_for(settings):
    media = RecordMedia(records(settings, "fails")[0], settings)
    assert media.item is None
    assert len(media()) == FILE_BYTES
    assert (media.item.media_id, media.item.size_bytes) == ("7", FILE_BYTES)


def records(settings, name):
    assert settings.claim_check_dir is not None
    dataref = (settings.claim_check_dir / name).as_uri()
    event = {"specversion": "1.0", "id": "7", "source": "/c", "type": "m", "dataref": dataref}
    headers = tuple((f"ce_{attribute}", text.encode()) for attribute, text in event.items())
    return [InRecord("media", 0, offset, 0, None, None, headers) for offset in range(RECORDS)]


def peak_bytes(sandbox, settings, batch):
    """How far this process's memory rises while a batch is decoded."""
    manifest = types.SimpleNamespace(contract=types.SimpleNamespace(media_plan=MediaPlan()))
    release = types.SimpleNamespace(manifest=manifest)
    route = Route(release)
    ctypes.CDLL(None).malloc_trim(0)  # what earlier tests freed would be taken before any more is asked for
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status_bytes("VmRSS")
    for opened in open_batch(batch, route, sandbox, settings):
        opened.decoding.exception(60)
    return status_bytes("VmHWM") - before


def status_bytes(name):
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024
