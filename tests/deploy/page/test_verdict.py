"""The view of one verdict: why it says so, where and when."""

import io
from typing import Any

import pytest
from PIL import Image
from verdicts import make_item, make_verdict

from deploy.lineage import back
from deploy.server.services import Services
from detector.records import Scan, Segment
from ingest.records import InRecord
from memory.verdict_index import note_verdicts

SCAN = Scan(frames=3, step_s=0.5, threshold=0.5, times_s=(0.0, 0.5, 1.0), scores=(0.1, 0.9, 0.2))
SEGMENT = Segment(start_s=0.5, end_s=1.0, frames=(12, 24), score=0.9, box=(0, 0, 8, 8))


@pytest.mark.parametrize("scanned", [True, False])
def test_a_videos_stretches_are_told_in_words_and_drawn_in_time(
    page: Any, services: Services, monkeypatch: pytest.MonkeyPatch, scanned: bool
) -> None:
    topic = services.ingest.media_topic
    looks = {"scan": SCAN, "segments": (SEGMENT,)} if scanned else {}
    verdict = make_verdict(make_item(7, topic=topic), **looks)
    with services.memory.note() as connection:
        note_verdicts(connection, [(InRecord("verdicts", 0, 0, 1000, None, b"", ()), verdict)])
    monkeypatch.setattr(back, "read_verdict", lambda *_: verdict)
    shown = page.get(f"/page/verdicts/{topic}-0-7").text
    picture = page.get(f"/page/verdicts/{topic}-0-7/timeline.png")
    assert ("0.5 s to 1.0 s (0.90)" in shown, "timeline.png" in shown) == (scanned, scanned)
    assert picture.status_code == (200 if scanned else 404)
    if scanned:
        assert Image.open(io.BytesIO(picture.content)).size[0] == 960
    assert page.get(f"/page/verdicts/{topic}-0-8/timeline.png").status_code == 404


def test_what_could_not_be_scanned_is_told_and_why(
    page: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = services.ingest.media_topic
    coarse = SCAN.model_copy(update={"left_out": 93})
    why = "DecodeError: the decoder used up its <processor> time"
    for offset, said in ((7, {"scan": coarse, "segments": ()}), (8, {"label": "unknown", "unscanned": why})):
        verdict = make_verdict(make_item(offset, topic=topic), **said)
        with services.memory.note() as connection:
            note_verdicts(connection, [(InRecord("verdicts", 0, offset, 1000, None, b"", ()), verdict)])
        monkeypatch.setattr(back, "read_verdict", lambda *_, said=verdict: said)
        shown = page.get(f"/page/verdicts/{topic}-0-{offset}").text
        assert ("93 more frames" in shown) == (offset == 7)
        assert ("its &lt;processor&gt; time</bdi>: so it is not called real" in shown) == (offset == 8)
