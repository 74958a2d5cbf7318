"""Small records that name large files: the worker holds one file at a time, however many a batch names."""

import ctypes
import io
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detector.batch import RecordMedia, open_batch
from detector.serving.rollout import Route
from ingest.records import InRecord, MediaPlan
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

FILE_BYTES, RECORDS = 30_000_000, 16


@pytest.fixture
def settings(tmp_path: Path) -> IngestSettings:
    picture = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(picture, "PNG")
    for name, head in (("decodes", picture.getvalue()), ("fails", b"\x89PNG\r\n\x1a\n")):
        (tmp_path / name).write_bytes(head + bytes(FILE_BYTES - len(head)))
    return IngestSettings(claim_check_dir=tmp_path)


@pytest.mark.parametrize("name", ["decodes", "fails"])
def test_many_records_that_name_one_large_file_cost_its_size_and_little_more(settings, name):
    with Sandbox(settings) as sandbox:
        assert peak_bytes(sandbox, settings, records(settings, name)) < 3 * FILE_BYTES


def test_media_that_is_taken_at_once_is_held_at_once(settings, monkeypatch):
    submit, held = Sandbox.submit, []

    def submit_at_once(self: Sandbox, media: RecordMedia, plan: MediaPlan) -> Any:
        held.append(media())  # however quick the decoding is, as it would be of media that wait for it
        return submit(self, held[-1], plan)

    monkeypatch.setattr(Sandbox, "submit", submit_at_once)
    with Sandbox(settings) as sandbox:
        assert peak_bytes(sandbox, settings, records(settings, "decodes")) > 8 * FILE_BYTES


def test_media_is_what_its_item_says_once_it_is_called_for(settings):
    media = RecordMedia(records(settings, "fails")[0], settings)
    assert media.item is None
    assert len(media()) == FILE_BYTES
    assert (media.item.media_id, media.item.size_bytes) == ("7", FILE_BYTES)


def records(settings: IngestSettings, name: str) -> list[InRecord]:
    assert settings.claim_check_dir is not None
    dataref = (settings.claim_check_dir / name).as_uri()
    event = {"specversion": "1.0", "id": "7", "source": "/c", "type": "m", "dataref": dataref}
    headers = tuple((f"ce_{attribute}", text.encode()) for attribute, text in event.items())
    return [InRecord("media", 0, offset, 0, None, None, headers) for offset in range(RECORDS)]


def peak_bytes(sandbox: Sandbox, settings: IngestSettings, batch: list[InRecord]) -> int:
    """How far this process's memory rises while a batch is decoded."""
    manifest = types.SimpleNamespace(contract=types.SimpleNamespace(media_plan=MediaPlan()))
    release: Any = types.SimpleNamespace(manifest=manifest)
    route = Route(release)
    ctypes.CDLL(None).malloc_trim(0)  # what earlier tests freed would be taken before any more is asked for
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status_bytes("VmRSS")
    for opened in open_batch(batch, route, sandbox, settings):
        opened.decoding.exception(60)
    return status_bytes("VmHWM") - before


def status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024
