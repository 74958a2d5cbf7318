import json
from io import BytesIO

import numpy as np
import pytest
import structlog
import torch
from handler_calls import Context
from PIL import Image
from prometheus_client import REGISTRY, generate_latest
from safetensors.torch import save_file
from structlog.testing import capture_logs
from torch import nn
from verdicts import make_item, make_verdict

import ingest.sandbox.sandbox  # noqa: F401 - what it counts
from detector.answers import count_committed, log_verdict
from detector.batch import Judged, UnscorableError, judge, open_batch
from detector.handler import Handler
from detector.metrics import (
    ENERGY,
    FAKES,
    SERVING,
    UNKNOWN_SCORE,
    VERDICTS,
    count_second_looks,
    forget_release,
    serve_release,
)
from detector.model.export import ExportError, export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.records import Scan, Segment
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, WEIGHTS, seal, verify
from detector.release.contract import MediaInput, PoolingInput, body_bytes, crops_and_pooling, request_for
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.release.tensors import (
    REQUEST_TYPE,
    beyond_tolerance,
    decode,
    differences,
    encode,
    read_probe,
    write_probe,
)
from detector.serving.rollout import Route
from detector.serving.session import Session, open_session
from detector.settings import DetectorSettings
from ingest.records import CropPlan, InRecord, PicturePlan
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.extract import extract
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from ingest.trace_context import TraceContext


def lines_about(release):
    return [
        line for line in generate_latest(REGISTRY).decode().splitlines() if f'release="{release}"' in line
    ]


def test_a_retired_release_leaves_no_series_behind():
    for release in ("retired", "live"):
        for label in ("real", "fake", "unknown"):
            VERDICTS.labels(label, release).inc()
        for family in ("gan", "blend"):
            FAKES.labels(family, release).inc()
        ENERGY.labels(release).observe(-3)
        UNKNOWN_SCORE.labels(release).observe(1)
        SERVING.labels(release).set(1)
    forget_release("retired")
    assert lines_about("retired") == []
    assert len(lines_about("live")) > 10
    forget_release("live")


def test_forgetting_a_release_that_never_scored_is_no_error():
    forget_release("never seen")


def test_a_release_that_begins_to_score_shows_its_series_at_zero():
    serve_release("new", ["gan"])
    fakes = {"family": "gan", "release": "new"}
    assert REGISTRY.get_sample_value("forgewatch_detector_fakes_total", fakes) == 0
    for label in ("real", "fake", "unknown"):
        labels = {"label": label, "release": "new"}
        assert REGISTRY.get_sample_value("forgewatch_detector_verdicts_total", labels) == 0
    assert REGISTRY.get_sample_value("forgewatch_detector_energy_count", {"release": "new"}) == 0
    assert REGISTRY.get_sample_value("forgewatch_detector_serving", {"release": "new"}) == 1
    forget_release("new")


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("forgewatch_detector_swaps_total", {"outcome": "refused"}),
        ("forgewatch_detector_dead_letters_total", {"stage": "decode", "reason": "unknown_format"}),
        ("forgewatch_detector_dead_letters_total", {"stage": "envelope", "reason": "dataref_missing"}),
        ("forgewatch_detector_dead_letters_total", {"stage": "commit", "reason": "record_too_large"}),
        ("forgewatch_detector_told_videos_total", {"label": "real"}),
        ("forgewatch_ingest_sandbox_restarts_total", {"reason": "timeout"}),
    ],
)
def test_a_counter_is_there_before_its_first_event(name, labels):
    # One whose first value is 100 has an increase of 0, and nobody is told.
    assert REGISTRY.get_sample_value(name, labels) is not None


def judged(label, family, **changes):
    verdict = make_verdict(make_item(), label=label, family=family, release="c" * 64, **changes)
    return Judged(InRecord("media", 0, 0, 0, None, b"", ()), verdict, None, None, "score", None, "c" * 12)


def test_fakes_are_counted_by_family_and_what_is_unknown_is_no_fake_of_the_likeliest_one():
    FAKES.clear()
    count_committed(
        [judged("fake", "gan"), judged("fake", "gan"), judged("unknown", "gan"), judged("real", None)],
        [0.0] * 4,
    )
    counted = {
        (sample.labels["family"], sample.labels["release"]): sample.value
        for metric in FAKES.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    assert counted == {("gan", "cccccccccccc"): 2}
    forget_release("cccccccccccc")


def test_videos_with_a_told_stretch_are_counted_by_what_they_are_called():
    def counted():
        return [
            REGISTRY.get_sample_value("forgewatch_detector_told_videos_total", {"label": label})
            for label in ("real", "unknown")
        ]

    before = counted()
    told = Segment(start_s=0, end_s=1, frames=(0, 24), score=0.9, box=(0, 0, 8, 8))
    count_committed(
        [judged("real", None, segments=one) for one in ((told,), (told, told), (), None)]
        + [judged("unknown", None, segments=(told,))],
        [0.0] * 5,
    )
    assert np.subtract(counted(), before).tolist() == [2, 1]
    forget_release("cccccccccccc")


def test_second_looks_are_counted_by_what_the_release_can_add_and_did():
    def counted():
        return [
            REGISTRY.get_sample_value(f"forgewatch_detector_{what}_total", {"outcome": outcome})
            for what in ("maps", "scans")
            for outcome in ("made", "failed")
        ]

    before = counted()
    scan = Scan(frames=1, step_s=0, threshold=0.5, times_s=(0.0,), scores=(0.1,))
    video = make_verdict(make_item(), kind="video")
    verdicts = [
        make_verdict(make_item()),
        video,
        video.model_copy(update={"scan": scan, "segments": ()}),
        video.model_copy(update={"label": "real"}),
    ]
    name = "forgewatch_detector_looks_left_out_total"
    left_out = REGISTRY.get_sample_value(name, {"look": "scan"}) or 0
    count_second_looks(["scan", "map"], [video.model_copy(update={"left_out": ("scan", "map")})])
    assert counted() == before
    assert REGISTRY.get_sample_value(name, {"look": "scan"}) == left_out + 1
    count_second_looks(["scan"], verdicts)
    count_second_looks(["map"], verdicts[:1])
    assert np.subtract(counted(), before).tolist() == [0, 1, 1, 2]


TRACE = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
RECORD = InRecord("media", 3, 17, 0, None, b"", ())
RELEASE = "c" * 12
ABOUT = {"item": "media-3-17", "topic": "media", "partition": 3, "offset": 17, "release": RELEASE}


@pytest.fixture
def level(request):
    """Logs what is at least of this level, as a process does."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(request.param))


def scored():
    verdict = make_verdict(make_item(17, partition=3), label="fake", family="gan", release="c" * 64)
    return Judged(RECORD, verdict, None, None, "score", TRACE, RELEASE)


@pytest.mark.parametrize("level", ["info"], indirect=True)
def test_a_verdict_is_no_line_at_the_normal_level(level):
    with capture_logs() as lines:
        log_verdict(scored(), None)
    assert lines == []


@pytest.mark.parametrize("level", ["debug"], indirect=True)
def test_a_verdict_is_one_line_for_debugging_that_says_of_which_item_and_release(level):
    with capture_logs() as lines:
        log_verdict(scored(), None)
    (line,) = lines
    assert line["log_level"] == "debug"
    expected = ABOUT | {"trace_id": TRACE.trace_id, "label": "fake", "family": "gan"}
    assert expected.items() <= line.items()


@pytest.mark.parametrize("level", ["info"], indirect=True)
def test_a_dead_letter_is_a_line_in_one_printable_piece(level):
    with capture_logs() as lines:
        corrupt = DecodeError("corrupt", "broken\n\x1b[31m file")
        log_verdict(Judged(RECORD, None, None, corrupt, "decode", TRACE, RELEASE), None)
        refused = UnscorableError("refused", ValueError("no"))
        log_verdict(Judged(RECORD, None, None, refused, "score", None, RELEASE), None)
    first, second = lines
    assert ABOUT.items() <= first.items()
    assert (first["stage"], first["reason"], first["trace_id"]) == ("decode", "corrupt", TRACE.trace_id)
    assert first["error"].isprintable()
    assert "trace_id" not in second
    assert json.loads(json.dumps(lines)) == lines


# A model that sees whole pictures beside the crops: its graph and its declaration are all that it brings.
INPUTS = (
    *crops_and_pooling(CropPlan(crop_px=64, patches=2, face_patches=0, frames=4)),
    MediaInput(
        name="picture",
        dtype="float32",
        shape=("pictures", 8, 12, 3),
        view=PicturePlan(width_px=12, height_px=8),
        range=(0, 1),
        mean=(0.5, 0.5, 0.5),
    ),
    PoolingInput(name="picture_pooling", dtype="float32", shape=("rows", "pictures"), pools="picture"),
)


class RedIsFake(nn.Module):
    """A release's graph whose logits move with how red the whole picture is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        network = Network(Architecture(backbone="lcnet_035", crop_px=64, forensic=False, width=8), 2).eval()
        gate = GateParameters(
            terms={"energy": Term(median=0, scale=1, weight=1)},
            clip=1,
            unknown_threshold=9,
            fake_threshold=0.5,
        )
        self.base = DetectorGraph(network, gate, None)

    def forward(self, crops, pooling, picture, picture_pooling):
        said = self.base(crops, pooling)
        red = 20 * (picture_pooling @ picture.mean((1, 2)))[:, :1]
        return said | {"logits": 0.01 * said["logits"] + torch.cat([-red, red], 1)}


def asked(crops, pictures, rows):
    rng = np.random.default_rng(crops)
    poolings = [rng.random((rows, count)).astype(np.float32) for count in (crops, pictures)]
    pooling, picture_pooling = (one / one.sum(1, keepdims=True) for one in poolings)
    return {
        "crops": rng.integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8),
        "pooling": pooling,
        "picture": rng.random((pictures, 8, 12, 3)).astype(np.float32) - 0.5,
        "picture_pooling": picture_pooling,
    }


REQUESTS = [asked(5, 2, 3), asked(1, 1, 1)]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder, graph = tmp_path_factory.mktemp("artifact"), RedIsFake()
    contract = export(graph, INPUTS, folder / MODEL)
    measured = prove_equal(graph, folder / MODEL, contract, REQUESTS)
    save_file(graph.base.network.state_dict(), folder / WEIGHTS)
    write_probe(folder / PROBE, REQUESTS[0], Session(folder / MODEL, contract, threads=1).score(REQUESTS[0]))
    (folder / EVALUATION).write_text("{}")
    (folder / MODEL_CARD).write_text("Red is fake.\n")
    draft = Manifest(
        classes=("real", "red"),
        architecture=graph.base.network.architecture,
        contract=contract,
        feature_version=None,
        gate=graph.base.gate,
        reference=(),
        parent=None,
        calibration={},
        export_differences=measured,
    )
    return verify(seal(folder, draft).folder)


def picture(*colours):
    """A PNG of one frame for each colour."""
    frames = [Image.new("RGB", (200, 100), colour) for colour in colours]
    file = BytesIO()
    frames[0].save(file, "PNG", save_all=len(frames) > 1, append_images=frames[1:], duration=40)
    return file.getvalue()


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(IngestSettings(decode_processes=1)) as opened:
        yield opened


@pytest.mark.slow
def test_its_probe_says_what_the_graph_says_in_another_session(artifact):
    request, expected = read_probe(artifact.folder / PROBE, artifact.manifest.contract)
    assert request.keys() == {one.name for one in INPUTS}
    assert beyond_tolerance(differences(open_session(artifact, 1).score(request), expected)) == []


def test_an_export_that_lost_the_second_input_is_found(artifact):
    graph = RedIsFake()
    graph.forward = lambda **arrays: graph.base(arrays["crops"], arrays["pooling"])
    with pytest.raises(ExportError, match="logits differs by"):
        prove_equal(graph, artifact.folder / MODEL, artifact.manifest.contract, REQUESTS)


@pytest.mark.slow
def test_the_worker_judges_items_and_frames_by_their_own_pictures(artifact, sandbox):
    session = open_session(artifact, 1)
    media = [picture("red"), picture("blue"), picture("blue", "red", "#ff8080"), picture("red")] * 3
    records = [InRecord("media", 0, i, 0, None, data, ()) for i, data in enumerate(media)]
    batch = open_batch(records, Route(artifact), sandbox, IngestSettings())
    judged = judge(batch, lambda _, request: session.score(request), DetectorSettings(), 900_000)
    verdicts = [one.verdict for one in judged]
    assert [verdict and verdict.label for verdict in verdicts] == ["fake", "real", "fake", "fake"] * 3
    assert all(
        verdict and [region.label for region in verdict.regions] == ["real", "fake", "fake"]
        for verdict in verdicts[2::4]
    )


def test_items_score_together_as_they_do_alone(artifact):
    session, contract = open_session(artifact, 1), artifact.manifest.contract
    media = [picture(*colours) for colours in (["red"], ["blue", "red", "lime"], ["white"]) * 4]
    items = [extract(data, contract.media_plan, 10**6) for data in media]
    together = session.score(request_for(items, contract))
    alone = [session.score(request_for([item], contract)) for item in items]
    np.testing.assert_allclose(
        together["logits"][: len(items)], [one["logits"][0] for one in alone], atol=1e-4
    )
    regions = np.concatenate([one["logits"][1:] for one in alone])
    np.testing.assert_allclose(together["logits"][len(items) :], regions, atol=1e-4)


def test_the_size_of_a_request_counts_every_view(artifact):
    contract = artifact.manifest.contract
    items = [extract(picture("red"), contract.media_plan, 10**6)] * 5
    body = len(encode(request_for(items, contract)))
    assert body <= body_bytes(items, contract) <= body + 256 * len(contract.inputs)


@pytest.fixture(scope="module")
def ask(artifact):
    handler = Handler()
    handler.initialize(Context(artifact.folder, ""))

    def ask(body, content_type):
        context = Context(artifact.folder, content_type)
        (answer,) = handler.handle([{"body": body}], context)
        return context.status, answer

    return ask


def test_the_handler_answers_media_with_a_verdict(ask):
    for colour, label in (("red", "fake"), ("blue", "real")):
        status, answer = ask(picture(colour), "image/png")
        assert (status, json.loads(answer)["label"]) == (200, label)


def test_the_handler_answers_the_workers_arrays_and_refuses_others(artifact, ask):
    status, answer = ask(encode(REQUESTS[0]), REQUEST_TYPE)
    assert status == 200
    assert beyond_tolerance(differences(decode(answer), open_session(artifact, 1).score(REQUESTS[0]))) == []
    crops_alone = {name: REQUESTS[0][name] for name in ("crops", "pooling")}
    status, answer = ask(encode(crops_alone), REQUEST_TYPE)
    assert (status, json.loads(answer)["reason"]) == (400, "tensors")
