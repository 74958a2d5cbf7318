"""The view of one verdict: why it says so, where and when."""

import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from credentials import TRAINED, action, signed
from media import encode
from PIL import Image
from prometheus_client import REGISTRY, generate_latest
from verdicts import make_item, make_verdict

from deploy.client.kafka import event_headers
from deploy.lineage import back
from deploy.process import OwnMetrics
from deploy.releases.ledger import Move
from deploy.server.pictures import SharedMedia
from detector.records import Scan, Segment
from detector.release import crop_graphs
from detector.release.artifact import MANIFEST
from detector.second_pass.map_look import PictureMap, forgery_map
from ingest.records import InRecord, Provenance
from memory.verdict_index import note_verdicts
from updater.records import RealsMarked

SCAN = Scan(frames=3, step_s=0.5, threshold=0.5, times_s=(0.0, 0.5, 1.0), scores=(0.1, 0.9, 0.2))
SEGMENT = Segment(start_s=0.5, end_s=1.0, frames=(12, 24), score=0.9, box=(0, 0, 8, 8))


def test_verdicts_are_searched_by_source_label_family_and_time_in_pages(page, services):
    topic, found = services.ingest.media_topic, []
    for n in range(120):
        what = {"label": "fake", "family": "blend"} if n % 3 else {"label": "real", "family": None}
        verdict = make_verdict(make_item(n, topic=topic, source="50%_cam" if n % 2 else "<b>other"), **what)
        found.append((InRecord("verdicts", 0, n, 86_400_000 * n, None, b"", ()), verdict))
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, found)

    def shown(query):
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


def test_a_verdict_shows_the_whole_picture_and_the_files_name(page, services, monkeypatch):
    topic, asked = services.ingest.media_topic, []
    sent = event_headers(Path("/a/tour d'été <b>.jpg"))
    item = make_item(7, topic=topic).model_copy(update={"media_id": dict(sent)["ce_id"].decode()})
    verdict = make_verdict(item)
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, [(InRecord("verdicts", 0, 0, 1000, None, b"", ()), verdict)])
    monkeypatch.setattr(back, "read_verdict", lambda *_: verdict)

    def picture(_, *of):
        asked.append(of)
        return np.zeros((30, 40, 3), np.uint8)

    monkeypatch.setattr(SharedMedia, "picture", picture)
    shown = page.get(f"/page/verdicts/{topic}-0-7").text
    assert "tour d&#39;été &lt;b&gt;.jpg" in shown
    answer = page.get(f"/page/verdicts/{topic}-0-7/picture.png")
    assert Image.open(io.BytesIO(answer.content)).size == (40, 30)
    assert asked == [(f"{topic}-0-7", item.digest, 1024)]


@pytest.mark.parametrize("scanned", [True, False])
def test_a_videos_stretches_are_told_in_words_and_drawn_in_time(page, services, monkeypatch, scanned):
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


def test_what_could_not_be_scanned_is_told_and_why(page, services, monkeypatch):
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


def test_a_files_own_statement_is_a_claim_and_a_badge(page, services, monkeypatch):
    claim = Provenance(state="invalid", declares="captured", signer="<b>Ada</b>")
    verdict = make_verdict(make_item(7, topic=services.ingest.media_topic), provenance=claim)
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, [(InRecord("verdicts", 0, 0, 1000, None, b"", ()), verdict)])
    monkeypatch.setattr(back, "read_verdict", lambda *_: verdict)
    shown = page.get(f"/page/verdicts/{verdict.id}").text
    assert '<span class="tag bad">credential: invalid</span>' in shown
    assert "that it was captured with a camera (signed by &lt;b&gt;Ada&lt;/b&gt;, but changed since" in shown


def picture():
    pixels = np.random.default_rng(0).integers(0, 256, (200, 160, 3), dtype=np.uint8)
    return encode(Image.fromarray(pixels), "PNG")


def drop(page, *contents, name="a.png", **fields):
    token = re.search('name="form_token" value="([0-9a-f]+)"', page.get("/page/try").text)
    assert token is not None
    return page.post(
        "/page/try",
        data={"form_token": token[1], **fields},
        files=[("file", (name, each)) for each in contents],
    )


def take_live(services, artifact, candidate_of):
    for name in (*artifact.manifest.files, MANIFEST):
        with services.artifacts.upload(artifact.digest, name) as upload:
            upload.write((artifact.folder / name).read_bytes())
            upload.commit()
    candidate = candidate_of(artifact)
    named = artifact.digest, candidate.evaluation_digest
    services.ledger.append(
        lambda history: [
            Move("updater", "propose", *named, candidate=candidate),
            Move("ada", "approve", *named),
            Move("ada", "promote", *named),
        ]
    )
    return artifact


@pytest.mark.slow
def test_a_picture_gets_a_verdict_in_words_and_nothing_of_it_is_kept(
    page, services, untrained_artifact, candidate_of, monkeypatch, tmp_path
):
    monkeypatch.setattr(services.artifacts, "_max_file_bytes", 2**30)
    live = take_live(services, untrained_artifact, candidate_of)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    shown = drop(page, picture(), name="<b>\u202e.png", source="camera")
    assert shown.status_code == 200, shown.text
    assert "160 × 200" in shown.text
    declared = drop(page, signed(picture(), "image/png", action("created", TRAINED))).text
    assert "fake · <bdi>declared:generated</bdi>" in declared
    assert "made by a generative model" in declared
    assert live.version in shown.text
    assert "Unknown score" in shown.text
    assert str(tmp_path) not in drop(page, picture()).text
    assert "&lt;b&gt;" in shown.text
    assert "\u202e" not in shown.text
    assert [path.name for path in (tmp_path / "t").iterdir() if path.name.startswith("try-")] == []
    (address,) = set(re.findall(r'src="(/page/try/[^"]+\.png)"', shown.text))
    assert Image.open(io.BytesIO(page.get(address).content)).size == (160, 200)
    assert page.get("/page/try/other.png").status_code == 404
    refusals = {b"\xff\xd8 no picture": "another|Save", b"": "is empty", picture()[:2000]: "[Tt]ry another"}
    for content, why in refusals.items():
        refused = drop(page, content, name="x.jpg")
        assert (refused.status_code, "Error 422" in refused.text) == (422, False)
        assert re.search(why, refused.text)
    both = drop(page, picture(), b"nothing")
    assert (both.status_code, both.text.count("has no verdict"), both.text.count("160 × 200")) == (200, 1, 1)
    assert "choose a picture" in drop(page).text
    with services.memory.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM exemplars").scalar() == 0


@pytest.mark.slow
def test_a_map_is_shown_over_the_picture_unless_the_release_marks_too_many_genuine_ones(
    page, services, localized_artifact, candidate_of, monkeypatch
):
    monkeypatch.setattr(services.artifacts, "_max_file_bytes", 2**30)
    take_live(services, localized_artifact, candidate_of)
    for bound, maps in ((1.0, 1), (-0.1, 0)):
        monkeypatch.setattr(crop_graphs, "MAX_REALS_MARKED", bound)
        shown = drop(page, picture()).text
        assert shown.count('alt="Where it seems forged"') == maps
        assert ("The map is left out" in shown) == (not maps)
    region = forgery_map(PictureMap(np.ones((2, 2), np.float32), (0, 0, 16, 16)), 0.5, 0)
    item = make_item(7, topic=services.ingest.media_topic)
    said = make_verdict(item, release=localized_artifact.digest, map=region)
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, [(InRecord("verdicts", 0, 0, 1000, None, b"", ()), said)])
    monkeypatch.setattr(back, "read_verdict", lambda *_: said)
    evaluation = SimpleNamespace(reals_marked=RealsMarked(share=0.08, reals=100), made_of=None)
    monkeypatch.setattr(services.evaluations, "of", lambda _: evaluation)
    for bound in (1.0, 0.05):
        monkeypatch.setattr(crop_graphs, "MAX_REALS_MARKED", bound)
        assert ("maps mark 8 % of" in page.get(f"/page/verdicts/{said.id}").text) == (bound < 0.08)


def test_where_nothing_is_live_it_says_so(page):
    refused = drop(page, picture())
    assert (refused.status_code, "nothing is live yet" in refused.text) == (409, True)


def test_a_tried_file_sets_no_metric_of_a_detector_in_this_process():
    shown, loaded = (generate_latest(registry).decode() for registry in (OwnMetrics(), REGISTRY))
    assert "forgewatch_detector_torchserve_ready 0.0" in loaded
    assert "forgewatch_detector_" not in shown
    assert "forgewatch_deploy_" in shown
