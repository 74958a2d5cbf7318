"""The view of one verdict: why it says so, where and when."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from verdicts import make_item, make_verdict

from deploy.client.kafka import event_headers
from deploy.lineage import back
from deploy.server.services import Services
from deploy.server.shared_media import SharedMedia
from detector.records import Scan, Segment
from ingest.records import InRecord
from memory.verdict_index import note_verdicts

SCAN = Scan(frames=3, step_s=0.5, threshold=0.5, times_s=(0.0, 0.5, 1.0), scores=(0.1, 0.9, 0.2))
SEGMENT = Segment(start_s=0.5, end_s=1.0, frames=(12, 24), score=0.9, box=(0, 0, 8, 8))


def test_verdicts_are_searched_by_source_label_family_and_time_in_pages(
    page: Any, services: Services
) -> None:
    topic, found = services.ingest.media_topic, []
    for n in range(120):
        what = {"label": "fake", "family": "blend"} if n % 3 else {"label": "real", "family": None}
        verdict = make_verdict(make_item(n, topic=topic, source="50%_cam" if n % 2 else "<b>other"), **what)
        found.append((InRecord("verdicts", 0, n, 86_400_000 * n, None, b"", ()), verdict))
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, found)

    def shown(query: str) -> list[int]:
        answer = page.get(f"/page/verdicts?{query}")
        assert (answer.status_code, "<b>other" in answer.text) == (200, False)
        return [int(n) for n in re.findall(rf'href="/page/verdicts/{topic}-0-(\d+)"', answer.text)]

    assert shown("") == list(range(119, 69, -1))
    assert shown("page=3") == list(range(19, -1, -1))
    assert shown("source=0%25_c&label=real&page=1") == [n for n in range(119, -1, -1) if n % 2 and not n % 3]
    assert shown("family=blend&since=1970-01-11&until=1970-01-15T00:00") == [14, 13, 11, 10]
    assert shown("family=other") == []
    assert "page=2" in page.get("/page/verdicts?label=fake").text
    refused = page.get("/page/verdicts?since=yesterday")
    assert (refused.status_code, "is no time" in refused.text) == (422, True)


def test_a_verdict_shows_the_whole_picture_and_the_files_name(
    page: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, asked = services.ingest.media_topic, []
    sent = event_headers(Path("/a/tour d'été <b>.jpg"))
    item = make_item(7, topic=topic).model_copy(update={"media_id": dict(sent)["ce_id"].decode()})
    verdict = make_verdict(item)
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, [(InRecord("verdicts", 0, 0, 1000, None, b"", ()), verdict)])
    monkeypatch.setattr(back, "read_verdict", lambda *_: verdict)

    def picture(_: object, *of: object) -> Any:
        asked.append(of)
        return np.zeros((30, 40, 3), np.uint8)

    monkeypatch.setattr(SharedMedia, "picture", picture)
    shown = page.get(f"/page/verdicts/{topic}-0-7").text
    assert "tour d&#39;été &lt;b&gt;.jpg" in shown
    answer = page.get(f"/page/verdicts/{topic}-0-7/picture.png")
    assert Image.open(io.BytesIO(answer.content)).size == (40, 30)
    assert asked == [(f"{topic}-0-7", item.digest, 1600)]


@pytest.mark.parametrize("scanned", [True, False])
def test_a_videos_stretches_are_told_in_words_and_drawn_in_time(
    page: Any, services: Services, monkeypatch: pytest.MonkeyPatch, scanned: bool
) -> None:
    topic = services.ingest.media_topic
    looks = {"scan": SCAN, "segments": (SEGMENT,)} if scanned else {}
    verdict = make_verdict(make_item(7, topic=topic), **looks)
    with services.memory.write_unversioned() as connection:
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
        with services.memory.write_unversioned() as connection:
            note_verdicts(connection, [(InRecord("verdicts", 0, offset, 1000, None, b"", ()), verdict)])
        monkeypatch.setattr(back, "read_verdict", lambda *_, said=verdict: said)
        shown = page.get(f"/page/verdicts/{topic}-0-{offset}").text
        assert ("93 more frames" in shown) == (offset == 7)
        assert ("its &lt;processor&gt; time</bdi>: it is therefore not judged real" in shown) == (offset == 8)
