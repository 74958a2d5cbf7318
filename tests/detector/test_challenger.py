"""The challenger is asked beside the champion, whose answers it neither changes nor holds up."""

import shutil
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import REGISTRY
from verdicts import make_item, make_verdict

from detector import challenger as module
from detector.batch import Judged, judge, open_batch
from detector.challenger import Challenger, attach_comparison
from detector.records import MAX_COMPARISON_BYTES
from detector.release.artifact import load, seal
from detector.release.contract import MediaInput
from detector.release.crop_graphs import MapContract
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.serving.torchserve import TorchServeUnavailableError
from detector.settings import DetectorSettings
from ingest.picture_hash import PICTURE_BYTES
from ingest.records import Decoded, InRecord, Metadata, PlacesPlan, Provenance, Region
from ingest.sandbox.decode import DecodeError
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"
ITEMS, BAD = 12, 3


class Sandbox:
    """Every item is a picture by its number, and one cannot be decoded; counts what it was asked."""

    def __init__(self):
        self.plans = []

    def submit(self, media, plan, spent_s=0.0):
        self.plans.append(plan)
        future = Future()
        number = media()[len(PNG)]
        if number == BAD:
            future.set_exception(DecodeError("broken", "no picture"))
            return future
        pixels = np.random.default_rng(number).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
        face = Region("face", (0, 0, 64, 64), 0, None, (1,))
        hashes = bytes(PICTURE_BYTES)
        future.set_result(Decoded("image", "PNG", 64, 64, 1, pixels, (face,), picture_hashes=hashes))
        return future


class Model:
    """TorchServe's place. `challenger` is what a release other than the champion does when it is asked."""

    def __init__(self, champion):
        self._champion, self._session = champion, open_session(champion, threads=1)
        self._one_at_a_time = threading.Lock()
        self.challenger = lambda output: output
        self.fell = False

    def versions(self, timeout_s):
        return {} if self.fell else {self._champion.version: True}

    def predict(self, artifact, request):
        with self._one_at_a_time:
            output = self._session.score(request)
        return output if artifact.digest == self._champion.digest else self.challenger(output)


class Scene:
    """One worker's challenger, and batches of a dozen items of which the fourth is broken."""

    def __init__(self, champion, canary):
        self.champion, self.canary = champion, canary
        self.model, self.sandbox = Model(champion), Sandbox()
        self.healed = []
        parts = self.sandbox, self.model
        serving = SimpleNamespace(
            request_reload=lambda one: self.healed.append(one.digest), route=Route(champion)
        )
        settings = DetectorSettings()
        self.challenger = Challenger(*parts, serving, IngestSettings(), settings, 900_000)

    def judged(self, route, *, behind=False):
        records = [InRecord("media", 0, i, 0, None, PNG + bytes([i]), ()) for i in range(ITEMS)]
        sandbox = self.sandbox
        batch = open_batch(records, route, sandbox, IngestSettings())
        beside = self.challenger.begin(batch, route, waiting=behind, behind=behind)
        found = judge(batch, self.model.predict, DetectorSettings(), 900_000)
        for place, said in self.challenger.end(beside, 0.0).items():
            found[place] = attach_comparison(found[place], batch[place], said, route)
        return found

    def shadow(self, **given):
        found = self.judged(self.route(0.0), **given)
        assert self.releases(found) == {self.champion.digest}
        assert [result.verdict is None for result in found] == [place == BAD for place in range(ITEMS)]
        return comparisons(found)

    def route(self, canary_share):
        return Route(self.champion, self.canary, canary_share, 1.0)

    @staticmethod
    def releases(found):
        return {result.verdict.release for result in found if result.verdict}


def comparisons(found):
    made = [result.comparison for result in found if result.comparison]
    return [each for each in made if each.left_out is None]


def left_out():
    return REGISTRY.get_sample_value("forgewatch_detector_shared_items_total", {"outcome": "left_out"}) or 0.0


@pytest.fixture
def scene(untrained_artifact, tmp_path):
    folder = tmp_path / "canary"
    shutil.copytree(untrained_artifact.folder, folder)
    manifest = load(folder).manifest.model_copy(update={"parent": untrained_artifact.digest})
    return Scene(untrained_artifact, seal(folder, manifest))


def test_in_shadow_both_say_something_of_each_item_and_the_champion_answers(scene):
    found = scene.shadow()
    assert [each.id for each in found] == [f"media-0-{i}" for i in range(ITEMS) if i != BAD]
    assert {each.answered for each in found} == {"champion"}
    for each in found:
        assert (each.champion.label, each.champion.energy) == (each.challenger.label, each.challenger.energy)
        assert (each.champion.release, each.challenger.release) == (
            scene.champion.digest,
            scene.canary.digest,
        )
    assert len(scene.sandbox.plans) == ITEMS


def test_a_canary_answers_its_share_and_no_other(scene):
    route = scene.route(0.5)
    found = scene.judged(route)
    for result in found:
        if result.verdict is None or result.comparison is None:
            continue
        canary = route.canary_answers(result.record.id)
        assert result.verdict.release == (scene.canary if canary else scene.champion).digest
        assert result.comparison.answered == ("challenger" if canary else "champion")
    assert scene.releases(found) == {scene.champion.digest, scene.canary.digest}


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_it_maps_only_what_it_answers_since_no_comparison_has_a_map(scene, share):
    localizer = MapContract(crop_px=64, threshold=0.5, reals_marked=0.0, reals=20, export_difference=0.0)
    manifest = scene.canary.manifest.model_copy(update={"localizer": localizer})
    scene.canary = replace(scene.canary, manifest=manifest)
    route = scene.route(share)
    labels = {each.id: each.challenger.label for each in comparisons(scene.judged(route))}
    forged = [item_id for item_id, label in labels.items() if label != "real"]
    mapped = [plan for plan in scene.sandbox.plans if isinstance(plan, PlacesPlan)]
    assert forged
    assert len(mapped) == sum(map(route.canary_answers, forged))


def refuse(output):
    raise TorchServeUnavailableError("its worker died")


def nan_in(name):
    return lambda output: {**output, name: np.full_like(output[name], np.nan)}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (refuse, "its worker died"),
        (nan_in("energy"), "energy nan"),
        (nan_in("novelty"), "novelty nan"),
        (lambda _: {}, "KeyError"),
    ],
)
def test_where_the_challenger_fails_the_champion_answers_and_the_comparison_says_why(scene, fault, says):
    scene.model.challenger = fault
    found = scene.judged(scene.route(1.0))
    assert scene.releases(found) == {scene.champion.digest}
    for each in comparisons(found):
        assert says in (each.challenger.error or "")
        assert (each.answered, each.champion.error) == ("champion", None)
    assert len(comparisons(found)) == ITEMS - 1
    assert (scene.canary.digest in scene.healed) == (fault is refuse)


def test_a_challenger_that_hangs_is_waited_for_once_and_not_asked_again_meanwhile(scene, monkeypatch):
    monkeypatch.setattr(module, "_LEAST_PATIENCE_S", 0.05)
    go_on, asked = threading.Event(), []

    def hang(output):
        asked.append(1)
        go_on.wait(60)
        return output

    scene.model.challenger = hang
    assert {each.challenger.error for each in scene.shadow()} == {"no answer 0.1 s after the champion's"}
    assert {each.challenger.error for each in scene.shadow()} == {"it is still scoring earlier items"}
    assert asked == [1]
    go_on.set()
    under_way = scene.challenger._under_way
    assert under_way is not None
    under_way.result(60)
    monkeypatch.undo()
    assert {each.challenger.error for each in scene.shadow()} == {None}


def test_an_outage_of_torchserve_is_excused_once_in_ten_minutes(scene, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    scene.model.challenger = refuse
    before = left_out()
    scene.challenger.excuse()
    assert scene.shadow() == []
    assert left_out() - before == ITEMS
    clock[0] += 61
    scene.challenger.excuse()
    assert len(scene.shadow()) == ITEMS - 1
    clock[0] += 600
    scene.challenger.excuse()
    assert scene.shadow() == []


def test_torchserve_that_fell_after_the_champions_answer_is_not_the_challengers_fault(scene, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    scene.model.challenger, scene.model.fell = refuse, True
    assert scene.shadow() == []
    scene.challenger.excuse()  # the champion meets it in its next batch
    clock[0] += 61
    assert len(scene.shadow()) == ITEMS - 1


def test_an_outage_that_lasts_is_one_however_long_the_champion_waits(scene, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    scene.model.challenger = refuse
    answer = scene.model.predict

    def after_an_hour(artifact, request):
        if artifact.digest == scene.champion.digest:
            for _ in range(120):
                scene.challenger.excuse()
                clock[0] += 30
        return answer(artifact, request)

    monkeypatch.setattr(scene.model, "predict", after_an_hour)
    assert scene.shadow() == []


def test_a_release_that_cannot_be_loaded_says_so_in_its_place(scene):
    route = Route(
        scene.champion,
        None,
        0.0,
        1.0,
        refused=(scene.canary.digest, "ProbeError: scores differ" + "." * 9000),
    )
    found = comparisons(scene.judged(route))
    assert {each.challenger.release for each in found} == {scene.canary.digest}
    assert all((each.challenger.error or "").startswith("ProbeError: scores differ") for each in found)
    assert max(len(each.model_dump_json()) for each in found) < MAX_COMPARISON_BYTES / 4
    assert len(found) == ITEMS - 1


def test_what_waits_too_long_is_scored_by_the_champion_alone_and_counted(scene):
    before = left_out()
    found = [result.comparison for result in scene.judged(scene.route(0.5), behind=True)]
    assert left_out() - before == ITEMS
    assert Counter(each and (each.left_out, each.answered) for each in found) == {
        ("the stream was behind", "champion"): ITEMS - 1,
        None: 1,
    }


def test_a_challenger_that_is_not_loaded_yet_is_left_out_and_said_so(scene):
    route = Route(scene.champion, None, 0.0, 1.0, missing=scene.canary.digest)
    found = [result.comparison for result in scene.judged(route)]
    assert {each.left_out for each in found if each} == {"the challenger is not loaded yet"}
    assert {each.challenger.release for each in found if each} == {scene.canary.digest}


def test_a_challenger_of_another_crop_plan_has_the_media_decoded_for_it(scene):
    manifest = scene.canary.manifest
    (crops, *others) = manifest.contract.inputs
    assert isinstance(crops, MediaInput)
    another = crops.model_copy(update={"view": manifest.contract.crop_plan.model_copy(update={"patches": 5})})
    contract = manifest.contract.model_copy(update={"inputs": (another, *others)})
    scene.canary = replace(scene.canary, manifest=manifest.model_copy(update={"contract": contract}))
    assert {each.challenger.error for each in scene.shadow()} == {None}
    assert len(scene.sandbox.plans) == 2 * ITEMS
    assert len({repr(each) for each in scene.sandbox.plans}) == 2


@pytest.mark.parametrize(
    ("said", "pixels"),
    [
        ({"family": "declared:generated", "pixel_label": "real"}, ("real", None)),
        ({"family": "declared:generated", "pixel_label": None}, ("fake", None)),
        ({"family": "blend"}, ("fake", "blend")),
    ],
)
def test_releases_are_compared_by_the_pixels_of_what_a_file_declares(scene, said, pixels):
    file = Provenance(metadata=Metadata(declares="generated"))
    verdict = make_verdict(make_item(1), label="fake", provenance=file, **said)
    record = InRecord("media", 0, 1, 0, None, b"", ())
    both = Judged(record, verdict, None, None, "score", None, scene.champion.version)
    opened = SimpleNamespace(media=SimpleNamespace(item=make_item(1)))
    compared = attach_comparison(both, opened, both, scene.route(0.0)).comparison
    assert compared is not None
    assert compared.declared
    assert (compared.champion.label, compared.champion.family) == pixels
