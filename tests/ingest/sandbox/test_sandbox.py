import os
import signal
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pytest
from credentials import EDITED, TRAINED, action, signed, signer
from media import long_gif, photo
from PIL import Image

from ingest import metrics
from ingest.dead_letters import dead_letter
from ingest.records import CropPlan, InRecord, MediaPlan, PicturePlan
from ingest.sandbox import child as child_module
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.extract import extract
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

PLAN = MediaPlan(crops=CropPlan(patches=4))
SETTINGS = IngestSettings(decode_processes=2)
MEDIA = Path(__file__).parents[4] / "shared" / "media"
LISTED = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".bmp", ".avif", ".mp4", ".mov", ".mkv"}


def reason(box, data):
    error = box.submit(data, PLAN).exception(120)
    assert isinstance(error, DecodeError)
    return error.reason


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(SETTINGS) as opened:
        yield opened


def test_it_gives_what_decoding_in_this_process_gives(sandbox):
    data = photo()
    inside, outside = sandbox.submit(data, PLAN).result(60), extract(data, PLAN, SETTINGS.max_pixels)
    assert np.array_equal(inside.crops, outside.crops)
    assert inside.crops.shape == (4, 128, 128, 3)
    assert (inside.kind, inside.format, inside.width, inside.height) == ("image", "JPEG", 256, 256)
    assert inside.regions == outside.regions


def test_a_dead_letter_says_what_its_file_declares_where_the_child_goes_on():
    made = signed(photo(96), "image/jpeg", action("created", TRAINED, softwareAgent="Model \u202eX"))
    undecodable = photo(64)[:200] + f'<a DigitalSourceType="{EDITED}"'.encode()
    says = "The file says that it was made by a generative model in Model X"
    ends = {
        made: f": send a smaller copy. {says} (signed by Test Signer, on your trust list)",
        undecodable: ". The file says, unsigned, that it was edited with an AI model",
        photo(96): ": send a smaller copy",
    }
    with Sandbox(IngestSettings(max_pixels=5_000), lambda: signer().anchor) as box:
        for data, end in ends.items():
            record, error = InRecord("media", 0, 0, 0, None, data, ()), box.submit(data, PLAN).exception(60)
            headers = dict(dead_letter(record, "decode", error, SETTINGS).headers)
            assert headers["__forgewatch.errors.message"].decode().endswith(end)


def test_whole_pictures_come_beside_the_crops_one_a_sampled_frame(sandbox):
    plan = MediaPlan(
        crops=CropPlan(patches=1, face_patches=0, frames=3),
        pictures={
            "thumb": PicturePlan(width_px=20, height_px=10),
            "scene": PicturePlan(width_px=64, height_px=48),
        },
    )
    buffer, shades = BytesIO(), (10, 60, 110, 160, 210, 250)
    frames = [Image.new("RGB", (200, 120), (shade, 0, 255 - shade)) for shade in shades]
    frames[0].save(buffer, "PNG", save_all=True, append_images=frames[1:], duration=40)
    decoded = sandbox.submit(buffer.getvalue(), plan).result(60)
    assert decoded.frame_numbers == tuple(region.frame for region in decoded.regions) == (1, 3, 5)
    assert {name: rows.shape for name, rows in decoded.pictures.items()} == {
        "thumb": (3, 10, 20, 3),
        "scene": (3, 48, 64, 3),
    }
    for row, number in enumerate(decoded.frame_numbers):
        expected = np.asarray(frames[number].resize((20, 10), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(decoded.pictures["thumb"][row], expected)
    np.testing.assert_array_equal(decoded.crops, extract(buffer.getvalue(), plan, SETTINGS.max_pixels).crops)


def test_a_face_is_a_region_with_its_own_crops(sandbox):
    file = MEDIA / "real" / "scikit-image__src___skimage2__data__astronaut.png"
    if not file.exists():
        pytest.skip("the shared media are not here")
    decoded = sandbox.submit(file.read_bytes(), PLAN).result(60)
    (face,) = decoded.regions
    assert face.kind == "face"
    assert face.crops == tuple(range(4, len(decoded.crops)))
    left, top, width, height = face.box
    assert left < 222 < left + width
    assert top < 120 < top + height


def test_several_threads_may_use_it(sandbox):
    files = [photo(side) for side in range(120, 140)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda data: sandbox.submit(data, PLAN).result(60), files))
    assert [result.width for result in results] == list(range(120, 140))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "empty"),
        (b"no media", "unknown_format"),
        (photo()[:300], "corrupt"),
        (bytes(SETTINGS.max_fetched_bytes + 1), "too_large"),
    ],
)
def test_what_cannot_be_decoded_has_its_reason(sandbox, data, expected):
    assert reason(sandbox, data) == expected


def test_a_bomb_is_refused_by_its_header(sandbox):
    buffer = BytesIO()
    Image.new("1", (50_000, 20_000)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 200_000
    assert reason(sandbox, buffer.getvalue()) == "too_many_pixels"


def test_an_item_that_takes_too_much_processor_time_is_ended(monkeypatch):
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 4)
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 60)
    with Sandbox(IngestSettings()) as sandbox:
        assert reason(sandbox, long_gif(3000, 300)) == "timeout"
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_media_that_does_not_fit_the_memory_limit_is_refused(monkeypatch):
    buffer = BytesIO()
    Image.new("RGB", (6900, 6900)).save(buffer, "PNG", compress_level=1)
    monkeypatch.setattr(child_module, "MAX_DECODE_MEMORY_BYTES", 268_435_456)
    with Sandbox(IngestSettings()) as sandbox:
        assert reason(sandbox, buffer.getvalue()) == "out_of_memory"
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_the_sandbox_holds_media_once_and_lets_it_go_with_the_answer(sandbox):
    size = 8_000_000
    data = photo() + bytes(size)  # a JPEG may be followed by anything
    references = sys.getrefcount(data)
    tracemalloc.start()
    try:
        futures = [sandbox.submit(data, PLAN) for _ in range(16)]
        assert all(len(future.result(60).crops) == 4 for future in futures)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Sixteen answers of four crops are 3 MB.
    assert peak < size
    deadline = time.monotonic() + 120
    while sys.getrefcount(data) != references:  # the last answer comes before its media is let go
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.bar("M1")
def test_every_hostile_file_gives_crops_or_a_reason_and_hurts_no_other(sandbox):
    files = sorted((MEDIA / "hostile").glob("*"))
    if not files:
        pytest.skip("the shared media are not here")
    futures = [sandbox.submit(file.read_bytes(), PLAN) for file in files]
    for file, future in zip(files, futures, strict=True):
        error = future.exception(60)
        if error is None:
            assert len(future.result().crops) >= 1, file.name
        else:
            assert isinstance(error, DecodeError), file.name
            assert error.reason in ("unknown_format", "corrupt", "too_many_pixels"), file.name


def moves(file):
    if file.suffix != ".gif":
        return False
    with Image.open(file, formats=["GIF"]) as picture:
        return getattr(picture, "n_frames", 1) > 1


@pytest.mark.parametrize("folder", ["real", "generated", "video"])
def test_every_sound_file_of_the_list_is_decoded(sandbox, folder):
    files = [file for file in sorted((MEDIA / folder).glob("*")) if file.suffix in LISTED]
    if not files:
        pytest.skip("the shared media are not here")
    # This one holds a header and no frame.
    files = [file for file in files if "nonfragment_header" not in file.name]
    plan = MediaPlan(crops=CropPlan(patches=4, face_patches=0))
    futures = [sandbox.submit(file.read_bytes(), plan) for file in files]
    for file, future in zip(files, futures, strict=True):
        assert future.exception(120) is None, file.name
        assert future.result().kind == ("video" if folder == "video" or moves(file) else "image"), file.name


# Faults of the host are never faults of the media; faults of the media are never the host's.
WITHOUT_FACES = MediaPlan(crops=CropPlan(patches=4, face_patches=0))
STAND_IN = """
import os, signal, socket, time
from ingest.sandbox import forks, wire
from ingest.sandbox.decode import DecodeError
def run(parent):
    served = 0
    wire.send_greeting(parent, None)
    while item := wire.receive_item(parent):
        served += 1
        {answer}
forks.serve(socket.socket(fileno=0), run)
"""


@pytest.fixture
def stand_in(monkeypatch):
    """Put another program in the child's place: what it does with an item is given."""

    def place(answer):
        program = STAND_IN.format(answer=answer.replace("\n", "\n        "))
        monkeypatch.setattr("ingest.sandbox.forks.command", lambda: [sys.executable, "-c", program])

    return place


def restarts(reason):
    return metrics.SANDBOX_RESTARTS.labels(reason)._value.get()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_all_processes_of_the_service_costs_no_item(number, one_child):
    with one_child() as (sandbox, child):
        future = sandbox.submit(long_gif(2000, 60), WITHOUT_FACES)
        child.send_signal(number)
        assert len(future.result(60).crops) > 1
        assert child.is_running()


def test_a_child_killed_between_items_costs_none(one_child):
    with one_child() as (sandbox, child):
        child.kill()
        assert len(sandbox.submit(photo(), WITHOUT_FACES).result(60).crops) == 4


def test_a_child_killed_over_an_item_costs_none(monkeypatch, one_child):
    before = restarts("killed")
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 60)
    with one_child() as (sandbox, child):
        idle_s = child.cpu_times().user
        future = sandbox.submit(long_gif(2000, 60), WITHOUT_FACES)
        while child.cpu_times().user < idle_s + 0.2:
            os.sched_yield()
        child.kill()
        assert len(future.result(60).crops) > 1
    assert restarts("killed") == before + 1


def test_children_that_are_killed_again_and_again_make_no_dead_letter(stand_in, one_child):
    stand_in("os.kill(os.getpid(), signal.SIGKILL)")
    before = restarts("killed")
    with one_child() as (sandbox, _):
        error = sandbox.submit(photo(), WITHOUT_FACES).exception(60)
    assert isinstance(error, SandboxUnavailableError)
    assert "killed from outside" in str(error)
    assert restarts("killed") == before + 3


def test_an_item_that_has_its_child_killed_for_memory_is_a_dead_letter(stand_in, monkeypatch, one_child):
    # As the kernel does on a host with less memory than the limit: no answer to MemoryError, but SIGKILL.
    stand_in(
        f"held = bytearray(b'x') * {child_module.MAX_DECODE_MEMORY_BYTES // 2}\n"
        "end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with one_child() as (sandbox, _):
        error = sandbox.submit(photo(), WITHOUT_FACES).exception(60)
    assert isinstance(error, DecodeError)
    assert error.reason == "out_of_memory"


def test_a_stopped_child_is_the_hosts_fault(monkeypatch, one_child):
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 1)
    with one_child() as (sandbox, child):
        child.send_signal(signal.SIGSTOP)
        error = sandbox.submit(photo(), WITHOUT_FACES).exception(60)
        assert isinstance(error, SandboxUnavailableError)
        assert "too busy" in str(error)
        assert child in psutil.wait_procs([child], 60)[0]
        assert len(sandbox.submit(photo(), WITHOUT_FACES).result(60).crops) == 4


@pytest.mark.parametrize(
    ("does", "reason", "limits"),
    [
        ("signal.pause()", "timeout", {"DECODE_TIMEOUT_S": 5}),
        (
            "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            "timeout",
            {"MAX_DECODE_PROCESSOR_S": 1, "DECODE_TIMEOUT_S": 60},
        ),
        ("while True: parent.send(bytes(1)); time.sleep(0.3)", None, {"DECODE_TIMEOUT_S": 5}),
        ("os.abort()", "crashed", {}),
        *(
            (f"wire.send(parent, {answer}, [bytes(3)], wire.wait)", "crashed", {})
            for answer in ("b'{}'", 'b\'{"reason": "what", "message": ""}\'', "b'['")
        ),
    ],
    ids=["sleeps", "blocks its limit's signal", "trickles", "ends", "no answer", "no reason", "no JSON"],
)
def test_a_decoder_without_answer_is_the_medias_fault(does, reason, limits, stand_in, monkeypatch, one_child):
    stand_in(does)
    for name, limit in limits.items():
        monkeypatch.setattr(child_module, name, limit)
    with one_child() as (sandbox, _):
        error = sandbox.submit(photo(), WITHOUT_FACES).exception(60)
    assert isinstance(error, DecodeError)
    assert reason in (None, error.reason)


def test_an_item_pays_for_no_damage_that_one_before_it_did(stand_in, one_child):
    stand_in("served > 1 and os.abort()\nwire.send_rejection(parent, DecodeError('corrupt', 'served'))")
    with one_child() as (sandbox, _):
        errors = [sandbox.submit(photo(), WITHOUT_FACES).exception(60) for _ in range(3)]
    assert [str(error) for error in errors] == ["served"] * 3


def test_the_last_try_is_made_while_no_other_child_decodes(stand_in):
    stand_in("os.kill(os.getpid(), signal.SIGKILL)")
    before = restarts("killed")
    with Sandbox(IngestSettings(decode_processes=2)) as sandbox:
        with sandbox._turns.take(alone=False):  # as if another item were being decoded
            future = sandbox.submit(photo(), WITHOUT_FACES)
            deadline = time.monotonic() + 180
            while not (restarts("killed") == before + 2 and sandbox._turns._taking.locked()):
                assert time.monotonic() < deadline
                os.sched_yield()
            assert not future.done()
        assert isinstance(future.exception(60), SandboxUnavailableError)
    assert restarts("killed") == before + 3
