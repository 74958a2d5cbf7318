"""One item's trouble is its own: whatever fails, the others of its batch get their verdicts."""

import errno
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector import batch as batch_module
from detector.batch import (
    BatchAbandonedError,
    Opened,
    PendingItem,
    RequestFailedError,
    judge,
    open_batch,
    request_bytes,
    requests,
)
from detector.records import Verdict
from detector.release.contract import request_for
from detector.release.tensors import encode
from detector.scoring import score
from detector.second_pass.map_look import PictureMap, forgery_map
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.serving.torchserve import (
    BrokenOffError,
    FailedError,
    ForeignAnswerError,
    OutlastedError,
    RequestTooLargeError,
    TorchServeRefusedError,
    TorchServeUnavailableError,
)
from detector.settings import DetectorSettings
from detector.unknowns import decode as decode_unknown
from detector.verdicts import ItemEvidence, JudgedItem
from ingest.picture_hash import PICTURE_BYTES
from ingest.records import Decoded, InRecord, Metadata, Provenance, Region
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import SandboxUnavailableError
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"


def decoded(seed, crops=2):
    pixels = np.random.default_rng(seed).integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8)
    face = Region("face", (0, 0, 64, 64), 0, None, (crops - 1,))
    hashes = bytes([seed % 256]) * PICTURE_BYTES
    said = Provenance(metadata=Metadata(declares="composite"))
    return Decoded("image", "PNG", 64, 64, 1, pixels, (face,), picture_hashes=hashes, provenance=said)


class Decoding:
    """The sandbox's place: the first byte after the signature says what becomes of an item."""

    def __init__(self, outcomes=None):
        self.outcomes = outcomes or {}

    def submit(self, media, plan):
        future = Future()
        try:
            number = media()[len(PNG)]
        except Exception as error:
            future.set_exception(error)
            return future
        if number in self.outcomes:
            future.set_exception(self.outcomes[number])
        else:
            future.set_result(decoded(number))
        return future


def opened(count, route, outcomes=None):
    records = [InRecord("media", 0, i, 0, None, PNG + bytes([i]), ()) for i in range(count)]
    sandbox = Decoding(outcomes)
    return open_batch(records, route, sandbox, IngestSettings())


class Model:
    """The graph in this process; `refuse(request)` raises what TorchServe would say of a request."""

    def __init__(self, artifact, refuse=lambda request: None):
        self._session = open_session(artifact, threads=1)
        self._refuse = refuse
        self.requests = []

    def __call__(self, artifact, request):
        self.requests.append((artifact.digest, len(encode(request))))
        self._refuse(request)
        return self._session.score(request)


def reasons(judged):
    assert all((result.verdict is None) != (result.error is None) for result in judged)
    return [result.error.reason if result.error else None for result in judged]


def shows(number):
    crop = decoded(number).crops[0]
    return lambda request: any((crop == one).all() for one in request["crops"])


def test_an_item_that_torchserve_refuses_is_the_only_one_without_a_verdict(untrained_artifact):
    bad = shows(3)

    def refuse(request):
        if bad(request):
            raise TorchServeRefusedError("HTTP 400: no")

    model = Model(untrained_artifact, refuse)
    judged = judge(opened(6, Route(untrained_artifact)), model, DetectorSettings(), 900_000)
    assert reasons(judged) == [None, None, None, "refused", None, None]
    assert judged[3].stage == "score"
    claim = "The file says, unsigned, that it was composed of several pictures"
    assert str(judged[3].error) == f"TorchServeRefusedError: HTTP 400: no. {claim}"
    ids = [result.verdict.id for result in judged if result.verdict]
    assert ids == [f"media-0-{i}" for i in range(6) if i != 3]


@pytest.mark.parametrize("failures", [2, 3, 99])
def test_an_item_that_a_release_fails_at_twice_alone_alone_has_no_verdict(untrained_artifact, failures):
    bad, failed = shows(3), []

    def refuse(request):
        if bad(request) and len(failed) < failures:
            failed.append(request)
            raise RequestFailedError("deadline_exceeded", OutlastedError("20 s"))

    model = Model(untrained_artifact, refuse)
    judged = judge(opened(6, Route(untrained_artifact)), model, DetectorSettings(), 900_000)
    lost = None if failures == 2 else "deadline_exceeded"  # once in the batch and once alone: a passing fault
    assert reasons(judged) == [None, None, None, lost, None, None]
    assert len(model.requests) == 1 + 6 + 1


class Failing:
    """A release that fails so often in a row as `fails` says, and its probe where that is away too."""

    def __init__(self, fails, *, away):
        self.fails, self.away = fails, away

    def predict(self, artifact, request):
        if self.fails:
            raise self.fails.pop()
        return {}

    def probe(self, artifact):
        if self.away:
            raise TorchServeUnavailableError("no answer")


@pytest.mark.parametrize(
    ("error", "times", "away", "reason"),
    [
        (OutlastedError("20 s"), 1, False, "deadline_exceeded"),
        (FailedError("503"), 5, False, "scoring_failed"),
        (BrokenOffError("reset"), 5, False, "scoring_failed"),
        (FailedError("503"), 4, False, None),
        (OutlastedError("30 s"), 50, True, None),
        (FailedError("503"), 50, True, None),
        (TorchServeUnavailableError("refused"), 50, False, None),
        (ForeignAnswerError("200"), 50, False, None),
    ],
)
def test_a_failure_is_the_requests_if_the_probe_is_answered(untrained_artifact, error, times, away, reason):
    torchserve = Failing([error] * times, away=away)
    serving = SimpleNamespace(request_reload=(healed := []).append)
    waited = []
    with pytest.raises(RequestFailedError) if reason else nullcontext() as failed:
        score(torchserve, serving, untrained_artifact, {}, waited.append)
    assert reason == (failed and failed.value.reason)
    assert len(waited) == len(healed) == times


@pytest.mark.parametrize("name", ["energy", "novelty", "logits", "neighbour_distance"])
def test_an_item_of_which_the_release_says_no_number_gets_no_verdict(untrained_artifact, name):
    bad, model = shows(3), Model(untrained_artifact)

    def score(artifact, request):
        output = model(artifact, request)
        return {**output, name: np.full_like(output[name], np.nan)} if bad(request) else output

    judged = judge(opened(6, Route(untrained_artifact)), score, DetectorSettings(), 900_000)
    assert reasons(judged) == [None, None, None, "refused", None, None]
    assert "nan" in str(judged[3].error)
    for result in judged:
        assert result.verdict is None or Verdict.model_validate_json(result.verdict.model_dump_json())


def test_what_a_second_look_adds_is_in_the_verdict_and_in_what_the_memory_gets(untrained_artifact):
    def again(artifact, seen):
        assert artifact == untrained_artifact
        assert [one.media() for one in seen] == [PNG + bytes([number]) for number in range(3)]
        where = forgery_map(PictureMap(np.ones((2, 2), np.float32), (0, 0, 16, 16)), 0.5, 0)
        found = [one.verdict.model_copy(update={"map": where, "label": "unknown"}) for one in seen]
        rows = np.ones(3, np.float32), np.zeros(2, np.float32)
        return [JudgedItem(one, ItemEvidence(decoded(9), *rows), lambda: b"") for one in found]

    model = Model(untrained_artifact)
    batch = opened(3, Route(untrained_artifact))
    judged = judge(batch, model, DetectorSettings(), 900_000, again=again)
    for number, result in enumerate(judged):
        assert result.verdict.map is not None
        assert result.unknown is not None
        message = decode_unknown(result.unknown)
        assert message.verdict == result.verdict
        np.testing.assert_array_equal(message.crops, decoded(9).crops)
        assert message.picture_hashes == decoded(number).picture_hashes
        assert (message.features.tolist(), message.embedding.tolist()) == ([1, 1, 1], [0, 0])


def test_requests_that_are_too_large_are_halved_down_to_the_item_that_never_fits(untrained_artifact):
    bad = shows(5)

    def refuse(request):
        if len(request["crops"]) > 4 or bad(request):
            raise RequestTooLargeError("HTTP 413: content length exceeded")

    model = Model(untrained_artifact, refuse)
    judged = judge(opened(8, Route(untrained_artifact)), model, DetectorSettings(), 900_000)
    assert reasons(judged) == [None] * 5 + ["request_too_large"] + [None] * 2
    assert len(model.requests) == 1 + 2 + 4 + 2


@pytest.mark.parametrize(
    "error", [KeyError("what"), ValueError("odd"), IndexError(), OSError(errno.ENAMETOOLONG, "x")]
)
def test_an_error_that_nobody_foresaw_costs_one_item(untrained_artifact, error):
    bad = shows(2)

    def refuse(request):
        if bad(request):
            raise error

    model = Model(untrained_artifact, refuse)
    batch = opened(5, Route(untrained_artifact), {0: error, 4: DecodeError("truncated", "half a file")})
    judged = judge(batch, model, DetectorSettings(), 900_000)
    assert reasons(judged) == ["unexpected", None, "unexpected", None, "truncated"]
    assert [result.stage for result in judged] == ["decode", "score", "score", "score", "decode"]


def test_an_envelope_that_breaks_the_reader_costs_one_item(untrained_artifact, monkeypatch):
    real = batch_module.open_envelope

    def reading(record, settings):
        if record.offset == 1:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return real(record, settings)

    monkeypatch.setattr(batch_module, "open_envelope", reading)
    batch = opened(3, Route(untrained_artifact))
    judged = judge(batch, Model(untrained_artifact), DetectorSettings(), 900_000)
    assert reasons(judged) == [None, "unexpected", None]
    assert judged[1].stage == "envelope"


@pytest.mark.parametrize(
    "fault",
    [MemoryError(), OSError(errno.EMFILE, "full"), SandboxUnavailableError("no"), BatchAbandonedError("no")],
)
def test_a_fault_of_the_host_makes_no_dead_letter(untrained_artifact, fault):
    def refuse(request):
        raise fault

    route = Route(untrained_artifact)
    with pytest.raises(type(fault)):
        judge(opened(2, route), Model(untrained_artifact, refuse), DetectorSettings(), 900_000)
    with pytest.raises(type(fault)):
        judge(opened(2, route, {1: fault}), Model(untrained_artifact), DetectorSettings(), 900_000)


def test_what_a_closed_sandbox_cancels_makes_no_dead_letter(untrained_artifact):
    batch = opened(1, Route(untrained_artifact))
    cancelled = Future()
    cancelled.cancel()
    object.__setattr__(batch[0], "decoding", cancelled)
    with pytest.raises(BatchAbandonedError):
        judge(batch, Model(untrained_artifact), DetectorSettings(), 900_000)


def test_shared_items_are_asked_about_apart_and_the_stable_release_scores_all(untrained_artifact):
    model = Model(untrained_artifact)
    route = Route(untrained_artifact, untrained_artifact, 0.1, 0.3)
    judged = judge(opened(40, route), model, DetectorSettings(), 900_000)
    assert [result.verdict.release for result in judged if result.verdict] == [untrained_artifact.digest] * 40
    assert len(model.requests) == 2
    alone = Model(untrained_artifact)
    judge(opened(40, Route(untrained_artifact)), alone, DetectorSettings(), 900_000)
    assert len(alone.requests) == 1


def ready(artifact, counts):
    record = InRecord("media", 0, 0, 0, None, PNG, ())
    none = None
    opened = Opened(record, artifact, none, none, 0.0)
    return [PendingItem(i, opened, none, decoded(i, n), 0.0) for i, n in enumerate(counts)]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 64), st.integers(10_000, 400_000)
)
def test_requests_hold_all_items_in_order_within_limits(untrained_artifact, counts, max_crops, max_bytes):
    items = ready(untrained_artifact, counts)
    parts = list(requests(items, max_crops, max_bytes))
    assert [one.place for part in parts for one in part] == list(range(len(counts)))
    for part in parts:
        within = sum(counts[one.place] for one in part) <= max_crops and request_bytes(part) <= max_bytes
        assert within or len(part) == 1


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_a_request_has_at_most_the_bytes_that_are_reckoned(untrained_artifact, counts):
    items = ready(untrained_artifact, counts)
    request = request_for([item.decoded for item in items], items[0].opened.artifact.manifest.contract)
    body = len(encode(request))
    assert body <= request_bytes(items) <= body + 512


def test_full_requests_of_the_defaults_fit_a_stock_torchserve(untrained_artifact):
    assert DetectorSettings().max_request_bytes < 6_553_500
