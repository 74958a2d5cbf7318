import math
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from verdicts import make_item, make_verdict

from detector.batch import Judged, affordable
from detector.records import SIGNATURE, Comparison, ReleaseVerdict, Verdict, sign
from detector.second_look import LookBudget
from detector.serving.rollout import Route
from detector.settings import DetectorSettings
from detector.worker import InFlightBatch, Worker
from ingest.envelope import EnvelopeError
from ingest.kafka.sink import CommitError, RecordTooLargeError, record_bytes
from ingest.process.health import Heartbeat
from ingest.records import InRecord, Metadata, Provenance
from ingest.settings import IngestSettings

POLLS = 12


class Stream:
    """An endless topic of null values; a batch takes `item_s` a record, by the clock below, to be judged."""

    def __init__(self, item_s, stop, behind=True):
        self.item_s, self.stop, self.now, self.behind = item_s, stop, 0.0, behind
        self.asked = []
        self._taken = 0

    def poll(self, most, timeout_s):
        self.now += self._taken * self.item_s  # the batch before is judged once this one is taken
        self.asked.append(most)
        self._taken = most
        if len(self.asked) == POLLS:
            self.stop.set()
        come = most if self.behind or len(self.asked) == 1 else most - 1
        return [InRecord("media", 0, offset, 0, None, None, ()) for offset in range(come)]

    def is_member(self):
        return True

    def resume(self):
        pass

    def group_metadata(self):
        return None

    def offsets_after(self, records):
        return {}


def asked_for(item_s, monkeypatch, behind=True, **settings):
    stop = threading.Event()
    source = Stream(item_s, stop, behind)
    monkeypatch.setattr(
        "detector.worker.time", SimpleNamespace(monotonic=lambda: source.now, time_ns=time.time_ns)
    )
    run(source, stop, **settings)
    return source.asked


def run(source, stop, decode=None, commit=lambda *_: None, heartbeat=None, **settings):
    no_plan = SimpleNamespace(media_plan=None)
    no_release = SimpleNamespace(
        digest="0" * 64, version="0" * 12, manifest=SimpleNamespace(contract=no_plan)
    )
    serving = SimpleNamespace(route=Route(no_release), tick=lambda: None)
    sink = SimpleNamespace(commit=commit, recover=lambda: None)
    none = None
    sandbox = SimpleNamespace(submit=decode or opened_at_once)
    ingest, detector = IngestSettings(), DetectorSettings(**settings)
    beats = heartbeat or Heartbeat(60)
    Worker(source, sandbox, none, serving, sink, ingest, detector, stop, beats).run()


def opened_at_once(media, plan):
    future = Future()
    with pytest.raises(EnvelopeError) as null:
        media()
    future.set_exception(null.value)
    return future


def test_a_batch_of_slow_media_is_no_larger_than_its_duration_allows(monkeypatch):
    asked = asked_for(0.25, monkeypatch, max_batch_duration_s=2)
    assert asked[0] == 1
    assert set(asked[3:]) == {8}


def test_media_slower_than_a_batch_is_taken_one_by_one(monkeypatch):
    assert set(asked_for(7, monkeypatch, max_batch_duration_s=2)) == {1}


def test_a_batch_of_quick_media_is_as_large_as_is_set(monkeypatch):
    assert set(asked_for(0.001, monkeypatch, max_batch_items=48)[3:]) == {48}


class Films(Stream):
    """A hundred pictures, and then films, all of them there at once."""

    offset, paused = 0, False

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False

    def poll(self, most, timeout_s):
        come = range(self.offset, self.offset if self.paused else min(200, self.offset + most))
        self.offset = come.stop
        return [InRecord("media", 0, offset, 0, None, None, ()) for offset in come]


def test_a_batch_costs_no_more_than_it_may_whatever_the_ones_before_cost(monkeypatch):
    batches = []
    stop = threading.Event()

    def judge_nothing(batch, *rest):
        batches.append([opened.record.offset for opened in batch])
        if batches[-1][-1] == 199:
            stop.set()
        return []

    def decode(media, plan):
        future = Future()
        film = media._record.offset >= 100
        future.set_result(SimpleNamespace(kind="image", processor_s=0.9 if film else 0.001))
        return future

    monkeypatch.setattr("detector.worker.judge", judge_nothing)
    run(Films(0, stop), stop, decode)
    assert [offset for batch in batches for offset in batch] == [*range(200)]
    assert max(map(len, batches)) > 8
    assert max(len(batch) for batch in batches if batch[0] >= 100) == 2


@pytest.mark.parametrize(("scanned", "together"), [(False, 4), (True, 1)])
def test_a_film_that_is_scanned_costs_its_scan_too(scanned, together):
    film = Future()
    film.set_result(SimpleNamespace(kind="video", processor_s=0.45))
    artifact = SimpleNamespace(manifest=SimpleNamespace(scanner=scanned or None))
    opened = [SimpleNamespace(decoding=film, artifact=artifact)] * 9
    assert affordable(tuple(opened), 2.0, lambda: None) == together


def test_a_worker_that_cannot_commit_says_so_until_it_can(monkeypatch):
    stop, told, beats = threading.Event(), list[str | None](), Heartbeat(60)
    refusals = [CommitError("the dead-letter topic takes no record")] * 3
    source = Films(0, stop)
    source.rewind = lambda: setattr(source, "offset", 0)

    def judge_nothing(batch, *rest):
        beats.beat()
        told.append(beats.hindrance())
        if len(told) == 9:
            stop.set()
        return []

    def commit(*_):
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr("detector.worker.judge", judge_nothing)
    monkeypatch.setattr("detector.worker.LAG_SECONDS.seconds", lambda: 981.0)
    run(source, stop, commit=commit, heartbeat=beats)
    assert told[0] is None
    assert "takes no record" in str(told[2])
    assert told[-1] is None


@pytest.mark.parametrize("behind", [True, False])
def test_second_looks_are_bounded_where_as_many_records_come_as_were_asked_for(monkeypatch, behind):
    told = []

    def judge_nothing(batch, *rest):
        told.append(rest[-1].keywords["waiting"])
        return []

    monkeypatch.setattr("detector.worker.judge", judge_nothing)
    asked_for(0.001, monkeypatch, behind)
    assert len(told) > 5
    assert set(told[1:]) == {behind}


class Patient(Stream):
    """Lets a batch be judged once it was polled three times, paused, by the worker's own thread."""

    def __init__(self, stop):
        super().__init__(0.0, stop)
        self.paused, self.resumed = False, False
        self.polled, self.owner = 0, threading.current_thread()
        self.judge = threading.Event()

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused, self.resumed = False, self.resumed or self.paused

    def poll(self, most, timeout_s):
        assert threading.current_thread() is self.owner
        if not self.paused:
            return super().poll(most, timeout_s)
        self.polled += 1
        if self.polled == 3:
            self.judge.set()
        return []


@pytest.mark.parametrize("member", [True, False], ids=["polls", "control: waits for its batch alone"])
def test_a_worker_polls_paused_in_its_own_thread_while_its_batch_is_judged(monkeypatch, member):
    stop = threading.Event()
    source = Patient(stop)
    judged = []

    def judge_slowly(batch, *rest):
        judged.append(source.judge.wait(60 if member else 0.1))
        return []

    monkeypatch.setattr("detector.worker.judge", judge_slowly)
    monkeypatch.setattr("detector.worker._MEMBER_INTERVAL_S", 0.001)
    if not member:
        monkeypatch.setattr(Worker, "_stay_a_member", lambda _: None)
    run(source, stop)
    assert judged[0] == source.resumed == member


def test_second_looks_take_as_long_as_all_else_and_a_minute_while_records_wait(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("detector.second_look.time.monotonic", lambda: clock[0])
    budget = LookBudget()
    looking = 0.0
    for _ in range(100):
        clock[0] += 1.0
        allowed = budget.seconds(waiting=True)
        # Each batch would take five seconds to look at again, and only whole seconds can be taken.
        took = min(5.0, math.ceil(allowed))
        clock[0] += took
        budget.charge()
        looking += took
    assert 60 + 100 - 1 <= looking <= 60 + 100 + 1
    assert budget.seconds(waiting=False) == math.inf
    clock[0] += 500.0
    budget.charge()
    assert budget.seconds(waiting=False) == math.inf
    assert budget.seconds(waiting=True) == 60.0


class Topics:
    """A sink that takes what the real one takes, and keeps what was committed."""

    def __init__(self, limit_bytes):
        self.committed = []
        self._limit = limit_bytes

    def commit(self, records, offsets, group_metadata):
        for record in records:
            if (size := record_bytes(record.key, record.value, record.headers)) > self._limit:
                raise RecordTooLargeError(record, size, self._limit)
        self.committed.extend(records)


NO_ROUTE = None


def committed(limit_bytes, verdicts, comparison=None, **given):
    none = None
    sink = Topics(limit_bytes)
    stream = Stream(0, threading.Event())
    ingest, settings = IngestSettings(), DetectorSettings(**given)
    worker = Worker(stream, none, none, none, sink, ingest, settings, threading.Event(), Heartbeat(60))
    records = [InRecord("media", 0, offset, 0, b"key", b"file", ()) for offset in range(len(verdicts))]
    judged = [
        Judged(record, verdict, b"crops", None, "score", verdict.item.trace, "a" * 12, comparison)
        for record, verdict in zip(records, verdicts, strict=True)
    ]
    worker._commit(InFlightBatch(records, (), NO_ROUTE, None, 0), judged)
    return sink.committed


def verdict(media_id, traceparent=None):
    state = traceparent and "vendor=1"
    item = make_item(media_id=media_id, traceparent=traceparent, tracestate=state)
    declared = Provenance(metadata=Metadata(declares="generated"))
    return make_verdict(item, id=f"of {media_id[:8]}", provenance=declared)


def test_an_answer_that_fits_no_topic_becomes_one_dead_letter_and_the_others_are_committed():
    sent = committed(4000, [verdict("short"), verdict("x" * 9000), verdict("other")])
    topics = [record.topic.removeprefix("forgewatch.") for record in sent]
    assert topics == ["verdicts", "unknowns", "dead-letters", "verdicts", "unknowns"]
    told = dict(sent[2].headers)
    assert told["__forgewatch.errors.offset"] == b"1"
    assert told["__forgewatch.errors.stage"] == b"commit"
    assert told["__forgewatch.errors.reason"] == b"record_too_large"
    assert told["__forgewatch.errors.message"].endswith(b"unsigned, that it was made by a generative model")
    assert (sent[2].key, sent[2].value) == (b"key", b"file")


def test_a_dead_letter_that_does_not_fit_is_done_again_once_its_topic_is_wide_enough():
    with pytest.raises(CommitError, match=r"raise max\.message\.bytes of forgewatch\.dead-letters"):
        committed(10, [verdict("short")])


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_producers_place_in_a_trace_goes_with_the_verdict_and_with_the_unknown():
    said, kept, untraced, _ = committed(9000, [verdict("traced", PARENT), verdict("untraced")])
    headers = dict(said.headers)
    for name in ("ce_traceparent", "traceparent"):
        assert headers[name] == PARENT.encode()
    for name in ("ce_tracestate", "tracestate"):
        assert headers[name] == b"vendor=1"
    assert Verdict.model_validate_json(said.value or b"").item.traceparent == PARENT
    assert dict(kept.headers) == {"traceparent": PARENT.encode(), "tracestate": b"vendor=1"}
    assert not [name for name, _ in untraced.headers if "trace" in name]


def test_a_comparison_goes_with_the_answer_in_one_transaction_and_is_signed_where_there_is_a_token():
    said = ReleaseVerdict(release="a" * 64, label="real")
    both = Comparison(
        id="media-0-0", source="camera", digest="0" * 64, champion=said, challenger=said, answered="champion"
    )
    compared, *answer = committed(9000, [verdict("short")], both, deploy_token="secret")
    assert [record.topic for record in (compared, *answer)] == [
        "forgewatch.comparisons",
        "forgewatch.verdicts",
        "forgewatch.unknowns",
    ]
    assert compared.value is not None
    assert Comparison.model_validate_json(compared.value) == both
    assert compared.headers == ((SIGNATURE, sign(b"secret", compared.value)),)
    unsigned, *_ = committed(9000, [verdict("short")], both)
    assert unsigned.headers == ()


def test_a_comparison_that_is_too_large_is_left_out_and_costs_no_answer():
    said = ReleaseVerdict(release="a" * 64, error="why " * 2000)
    both = Comparison(
        id="media-0-0", source="camera", digest="0" * 64, champion=said, challenger=said, answered="champion"
    )
    sent = committed(9000, [verdict("short")], both)
    assert [record.topic for record in sent] == ["forgewatch.verdicts", "forgewatch.unknowns"]
