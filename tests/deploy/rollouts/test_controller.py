"""Conductors over a real ledger: one move whoever makes it, and the ledger alone says where it stands."""

import itertools
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from deploy.releases.evidence import Evidence as Stored
from deploy.releases.ledger import Ledger, Move
from deploy.releases.standing import replay
from deploy.rollout_records import Plan, Turn
from deploy.rollouts import controller, moves
from deploy.rollouts.controller import RolloutController
from detector.records import Comparison, in_share
from ingest.kafka.topics import TopicError
from ingest.settings import IngestSettings
from tests.deploy.rollouts.conftest import CHALLENGER, CHAMPION
from updater.records import Candidate

EVALUATION = "e" * 64
PLAN = Plan(shadow=0.5, canary=(0.5, 1.0), minutes=0, answers=0)
SOURCES = [f"camera {source}" for source in range(10)]
PUBLISHER = SimpleNamespace(wake=lambda: None)


class Topic:
    """What detectors wrote: one item of each of ten sources every 10 seconds."""

    def __init__(self):
        self.written = []
        self.away = False
        self.no_items = []
        self.began_s, self.rollout = 0.0, 0
        self.numbers = (n for n in itertools.count() if in_share(f"forgewatch.media-0-{n}", 0.5))

    def write(self, compared, champion, challenger, units):
        for _ in range(units):
            for source in SOURCES:
                about = (champion, challenger, source)
                made = compared(next(self.numbers), *about, rollout=self.rollout)
                at_s = self.began_s + len(self.written)
                self.written.append((made.model_dump_json().encode(), [], at_s))

    def reader(self, _, topic, began_ms):
        return Reader(self)


class Reader:
    def __init__(self, topic):
        self._topic, self._next = topic, 0

    def poll(self):
        if self._topic.away:
            raise TopicError("cannot reach the broker")
        new = self._topic.written[self._next :]
        self._next += len(new)
        return iter(new)

    def read_until(self, now_s):
        return now_s, True

    def has_item(self, id):
        return id not in self._topic.no_items

    def close(self): ...


def candidate(digest, parent):
    return Candidate(
        digest=digest,
        evaluation_digest=EVALUATION,
        parent=parent,
        update=1,
        classes=("real", "blend"),
        gates=(),
    )


def stored(digest):
    return Stored(digest, EVALUATION, None, (), b"", None)


@pytest.fixture
def topic(monkeypatch):
    made = Topic()
    monkeypatch.setattr(controller, "TopicReader", made.reader)
    later = SimpleNamespace(time=lambda: made.began_s + 100_000)
    monkeypatch.setattr(controller, "time", later)
    return made


@pytest.fixture
def ledger(tmp_path, topic):
    made = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    made.append(
        lambda _: [
            Move("ada", "propose", CHAMPION, EVALUATION, candidate=candidate(CHAMPION, None)),
            Move("ada", "approve", CHAMPION, EVALUATION),
            Move("ada", "promote", CHAMPION, EVALUATION),
            Move("ada", "propose", CHALLENGER, EVALUATION, candidate=candidate(CHALLENGER, CHAMPION)),
            Move("ada", "approve", CHALLENGER, EVALUATION),
        ]
    )
    begin(made, topic)
    yield made
    made.close()


def begin(ledger, topic):
    ledger.append(lambda _: [Move("ada", "begin", CHALLENGER, EVALUATION, rollout=Turn(plan=PLAN))])
    trial = replay(ledger.events()).trial
    assert trial is not None
    topic.began_s, topic.rollout = trial.began.timestamp(), trial.number


def new(ledger, found=stored):
    return RolloutController(
        ledger, PUBLISHER, found, IngestSettings(), (), lambda before: SOURCES, lambda: ()
    )


def standing(ledger):
    return replay(ledger.events())


def actions(ledger):
    names = [event.move.action for event in ledger.events()]
    return names[names.index("begin") + 1 :]


def both_at_once(ledger):
    """Two servers come to a decision before either has made its move."""
    meet = threading.Barrier(2)

    def found(digest):
        meet.wait(120)
        return stored(digest)

    with ThreadPoolExecutor(2) as pool:
        for ticked in [pool.submit(new(ledger, found).tick) for _ in range(2)]:
            ticked.result(300)


def test_two_servers_at_once_make_one_move(ledger, topic, compared):
    topic.write(compared, "real", "real", 120)
    both_at_once(ledger)
    assert actions(ledger) == ["step"]
    topic.write(compared, "real", "blend", 30)
    both_at_once(ledger)
    assert actions(ledger) == ["step", "rollback"]


def test_comparisons_of_a_rollout_before_and_of_items_that_never_were_are_left_out(ledger, topic, compared):
    first, topic.rollout = topic.rollout, topic.rollout - 1
    topic.write(compared, "real", "unknown", 5)
    topic.rollout = first
    before = len(topic.written)
    topic.write(compared, "real", "unknown", 1)
    topic.no_items = [Comparison.model_validate_json(each[0]).id for each in topic.written[before:]]
    topic.write(compared, "real", "real", 1)
    rollouts = new(ledger)
    rollouts.tick()
    assert rollouts.view().shared == 10
    assert rollouts.view().left_out == {"it is not to be believed": 60}


def test_without_looking_anew_two_servers_would_take_two_steps(ledger, topic, compared, monkeypatch):
    def blindly(history, trial, *rest):
        now = replay(history).trial
        assert now is not None
        return step_on(history, now, *rest)

    step_on = moves.step_on
    monkeypatch.setattr(moves, "step_on", blindly)
    topic.write(compared, "real", "real", 120)
    both_at_once(ledger)
    assert actions(ledger) == ["step", "step"]


def test_a_server_begun_anew_comes_to_the_same_without_a_move_too_many(ledger, topic, compared):
    topic.write(compared, "real", "real", 120)
    first = new(ledger)
    first.tick()
    checks, second = first.view().checks, new(ledger)
    assert second.view().says == "Its comparisons are being read."
    second.tick()
    assert actions(ledger) == ["step", "step"]  # this plan's steps ask for no time
    assert second.view().checks == checks
    new(ledger).tick()
    assert standing(ledger).live_history == (CHAMPION, CHALLENGER)


def test_a_repeated_comparison_counts_once(ledger, topic, compared):
    topic.write(compared, "blend", "real", 1)
    (value, headers, at_s), *_ = topic.written
    topic.written = [(value, headers, at_s + 10 * number) for number in range(200)]  # else it is blind
    rollouts = new(ledger)
    rollouts.tick()
    view = rollouts.view()
    assert (view.shared, view.left_out, actions(ledger)) == (1, {"it came before": 199}, [])


def test_records_that_are_no_comparison_are_counted_and_move_nothing(ledger, topic, compared):
    topic.write(compared, "real", "real", 1)
    junk = [b"", b"{}", b"x" * 1_000_000, topic.written[0][0].replace(b"camera", b"c" * 17_000)]
    topic.written += [(value, [], topic.began_s + 5) for value in junk]
    rollouts = new(ledger)
    before = controller.metrics.UNBELIEVABLE._value.get()
    rollouts.tick()
    assert rollouts.view().shared == 10
    assert rollouts.view().left_out == {"it is not to be believed": 4}
    assert controller.metrics.UNBELIEVABLE._value.get() - before == 4


def test_a_topic_that_is_away_moves_nothing_and_is_said(ledger, topic, compared):
    topic.write(compared, "real", "real", 120)
    topic.away = True
    with pytest.raises(TopicError, match="cannot reach the broker"):
        new(ledger).tick()
    assert actions(ledger) == []


def test_a_ledger_restored_amid_a_rollout_goes_on_from_its_copy(ledger, topic, compared, tmp_path):
    copy = tmp_path / "yesterday.sqlite"
    with (
        closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as now,
        closing(sqlite3.connect(copy)) as backup,
    ):
        now.backup(backup)
    topic.write(compared, "real", "real", 120)
    new(ledger).tick()
    rollout = standing(ledger).rollout(ledger.id)
    assert rollout is not None
    assert rollout.canary_share == 0.5
    older = Ledger(f"sqlite:///{copy}")
    shadow = standing(older).rollout(older.id)
    assert shadow is not None
    assert (shadow.canary, shadow.canary_share, shadow.shared_share) == (CHALLENGER, 0, 0.5)
    assert shadow.sequence < rollout.sequence  # so the publisher raises its epoch above the topic's
    new(older).tick()
    assert actions(older) == ["step"]
    older.close()


def test_a_ledger_from_before_the_rollout_has_none_and_nothing_moves_it(ledger, topic, compared, tmp_path):
    older = Ledger(f"sqlite:///{tmp_path}/before.sqlite")
    history = [event.move for event in ledger.events()[:5]]
    older.append(lambda _: history)
    topic.write(compared, "real", "blend", 60)
    rollouts = new(older)
    rollouts.tick()
    assert (rollouts.view().trial, len(older.events())) == (None, 5)
    rollout = standing(older).rollout(older.id)
    assert rollout is not None
    assert (rollout.stable, rollout.canary) == (CHAMPION, None)
    began = datetime.now(UTC) + timedelta(seconds=1)
    topic.began_s = began.timestamp() + 600
    begin(older, topic)  # approved once more: what was seen before counts for nothing
    topic.written = [(value, headers, at_s - 3600) for value, headers, at_s in topic.written]
    rollouts.tick()
    assert (rollouts.view().shared, actions(older)) == (0, [])
    older.close()
