import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from ingest.records import CropPlan, MediaPlan, PicturePlan
from ingest.sandbox import child as child_module
from ingest.sandbox import sandbox as sandbox_module
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.extract import extract
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

PLAN = MediaPlan(crops=CropPlan(patches=4))
SETTINGS = IngestSettings(decode_processes=2)
MEDIA = Path(__file__).parents[4] / "shared" / "media"
LISTED = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".bmp", ".avif", ".mp4", ".mov", ".mkv"}


def photo(side: int = 256) -> bytes:
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def children() -> set[psutil.Process]:
    return {child for child in psutil.Process().children() if child.status() != "zombie"}


@contextmanager
def one_child(settings: IngestSettings) -> Iterator[tuple[Sandbox, psutil.Process]]:
    before = children()
    with Sandbox(settings) as sandbox:
        (child,) = children() - before
        yield sandbox, child


def reason(box: Sandbox, data: bytes) -> str:
    error = box.submit(data, PLAN).exception(120)
    assert isinstance(error, DecodeError)
    return error.reason


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SETTINGS) as opened:
        yield opened


def test_it_gives_what_decoding_in_this_process_gives(sandbox: Sandbox) -> None:
    data = photo()
    inside, outside = sandbox.submit(data, PLAN).result(60), extract(data, PLAN, SETTINGS.max_pixels)
    assert np.array_equal(inside.crops, outside.crops)
    assert inside.crops.shape == (4, 128, 128, 3)
    assert (inside.kind, inside.format, inside.width, inside.height) == ("image", "JPEG", 256, 256)
    assert inside.regions == outside.regions


def test_whole_pictures_come_beside_the_crops_one_a_sampled_frame(sandbox: Sandbox) -> None:
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


def test_a_face_is_a_region_with_its_own_crops(sandbox: Sandbox) -> None:
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


def test_several_threads_may_use_it(sandbox: Sandbox) -> None:
    files = [photo(side) for side in range(120, 140)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda data: sandbox.submit(data, PLAN).result(60), files))
    assert [result.width for result in results] == list(range(120, 140))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "empty"),
        (b"no media", "unknown_format"),
        (photo()[:900], "corrupt"),
        (bytes(SETTINGS.max_fetched_bytes + 1), "too_large"),
    ],
)
def test_what_cannot_be_decoded_has_its_reason(sandbox: Sandbox, data: bytes, expected: str) -> None:
    assert reason(sandbox, data) == expected


def test_a_bomb_is_refused_by_its_header(sandbox: Sandbox) -> None:
    buffer = BytesIO()
    Image.new("1", (50_000, 20_000)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 200_000
    assert reason(sandbox, buffer.getvalue()) == "too_many_pixels"


def test_an_item_that_takes_too_much_processor_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = BytesIO()
    Image.new("L", (3000, 3000)).save(buffer, "GIF")
    one = buffer.getvalue()
    frames = 13 + 3 * 2 ** ((one[10] & 7) + 1)  # behind the header and its palette
    many = one[:frames] + one[frames:-1] * 300 + one[-1:]
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 4)
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 60)
    with Sandbox(IngestSettings()) as sandbox:
        assert reason(sandbox, many) == "timeout"
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_media_that_does_not_fit_the_memory_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = BytesIO()
    Image.new("RGBA", (7900, 7900)).save(buffer, "PNG", compress_level=1)
    monkeypatch.setattr(child_module, "MAX_DECODE_MEMORY_BYTES", 536_870_912)
    with Sandbox(IngestSettings()) as sandbox:
        assert reason(sandbox, buffer.getvalue()) == "out_of_memory"
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_children_hold_nothing_of_the_parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORGEWATCH_INGEST_SASL_PASSWORD", "secret")
    with (tmp_path / "open").open("w") as held, one_child(IngestSettings()) as (_, child):
        os.set_inheritable(held.fileno(), True)
        assert set(child.environ()) == {"LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX"}
        assert child.num_fds() == 3
        assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid


def test_limits_stand_before_the_first_item_and_are_set_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A stand-in that only greets: whatever limits it has were not set by itself.
    greets = "import socket; from ingest import wire; s = socket.socket(fileno=0); "
    greets += "wire.send_greeting(s, None); wire.receive_item(s)"
    monkeypatch.setattr("ingest.sandbox.child.command", lambda: [sys.executable, "-c", greets])
    with one_child(IngestSettings()) as (_, child):
        limits = Path(f"/proc/{child.pid}/limits").read_text()
        for line in (
            "Max file size             0                    0",
            "Max core file size        0                    0",
            "Max address space         2147483648           2147483648",
            "Max open files            3                    3",
        ):
            assert line in limits


def test_a_child_is_confined_before_the_first_item() -> None:
    with one_child(IngestSettings()) as (_, child):
        status = Path(f"/proc/{child.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        assert "NoNewPrivs:\t1" in status
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"


def test_a_child_is_replaced_after_so_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "_MOST_ITEMS_A_CHILD", 3)
    with one_child(IngestSettings()) as (sandbox, first):
        for _ in range(3):
            assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4
        assert first in psutil.wait_procs([first], 60)[0]
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_the_sandbox_holds_media_once_and_lets_it_go_with_the_answer(sandbox: Sandbox) -> None:
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


def test_children_die_with_a_parent_that_is_killed() -> None:
    program = (
        "import psutil, sys\n"
        "from ingest.sandbox.sandbox import Sandbox\n"
        "from ingest.settings import IngestSettings\n"
        "with Sandbox(IngestSettings()):\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        gone, alive = psutil.wait_procs([child], 10)
    # Nobody may be there to reap an orphan.
    assert gone or alive[0].status() == "zombie"


def test_a_closed_sandbox_leaves_no_process() -> None:
    before = children()
    with Sandbox(SETTINGS):
        assert len(children() - before) == 2
    assert children() == before


def test_every_hostile_file_gives_crops_or_a_reason_and_hurts_no_other(sandbox: Sandbox) -> None:
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


@pytest.mark.parametrize("folder", ["real", "generated", "video"])
def test_every_sound_file_of_the_list_is_decoded(sandbox: Sandbox, folder: str) -> None:
    files = [file for file in sorted((MEDIA / folder).glob("*")) if file.suffix in LISTED]
    if not files:
        pytest.skip("the shared media are not here")
    # This one holds a header and no frame.
    files = [file for file in files if "nonfragment_header" not in file.name]
    plan = MediaPlan(crops=CropPlan(patches=4, face_patches=0))
    futures = [sandbox.submit(file.read_bytes(), plan) for file in files]
    for file, future in zip(files, futures, strict=True):
        assert future.exception(120) is None, file.name
        assert future.result().kind == ("video" if folder == "video" else "image")


def test_it_needs_no_capability() -> None:
    opens = (
        "import sys\n"
        "from ingest.records import MediaPlan\n"
        "from ingest.sandbox.sandbox import Sandbox\n"
        "from ingest.settings import IngestSettings\n"
        "assert 'CapEff:\\t0000000000000000' in open('/proc/self/status').read()\n"
        "with Sandbox(IngestSettings()) as sandbox:\n"
        "    print(len(sandbox.submit(sys.stdin.buffer.read(), MediaPlan()).result(60).crops))\n"
    )
    # 24 is PR_CAPBSET_DROP: what is not in the bounding set is gone after the next exec, for root too.
    drops = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "for capability in range(64): libc.prctl(24, capability, 0, 0, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", drops, opens], input=photo(), capture_output=True, check=True, timeout=180
    )
    assert done.stdout == b"4\n"
