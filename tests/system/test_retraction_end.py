"""A retraction ends by a real ledger and broker: outcomes are counted, and `retracted` is written once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaProducer
from streams import await_that
from taken_back import ITEMS, Scene, send

from deploy.group_lag import group_lag
from deploy.releases.ledger import Ledger, Move
from deploy.releases.standing import replay
from deploy.rollout_records import Turn
from deploy.rollouts.retractions import Retractions
from detector.reading import group_of
from detector.records import RETRACTIONS, SIGNATURE, VERDICTS, Outcome, sign
from detector.release.artifact import Artifact
from ingest.kafka.access import kafka_options
from updater.records import Candidate

pytestmark = pytest.mark.system

KEY = b"the detector's token"
CandidateOf = Callable[[Artifact], Candidate]


@pytest.fixture
def ledger(scene: Scene, candidate_of: CandidateOf, tmp_path: Path) -> Iterator[Ledger]:
    """The bad release went live after the good one, and was rolled back."""
    opened = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    for artifact in (scene.good, scene.bad):
        go_live(opened, candidate_of(artifact))
    roll_back(opened, scene)
    yield opened
    opened.close()


def go_live(ledger: Ledger, candidate: Candidate) -> None:
    about = (candidate.digest, candidate.evaluation_digest)
    proposed = Move("updater", "propose", *about, candidate=candidate)
    ledger.append(lambda _: [proposed, Move("ada", "approve", *about), Move("ada", "promote", *about)])


def roll_back(ledger: Ledger, scene: Scene) -> None:
    about = (scene.bad.digest, scene.bad.manifest.files["evaluation.json"])
    turn = Turn(retract=True)
    ledger.append(lambda _: [Move("ada", "rollback", *about, reason="odd", rollout=turn)])
    scene.rollout = replay(ledger.events()).rollout(ledger.id)


@pytest.fixture
def server(scene: Scene, ledger: Ledger) -> Callable[[float], Retractions]:
    """Makes what a deploy server has of retractions, which end after so many seconds of quiet."""
    ingest = scene.ingest
    publisher: Any = SimpleNamespace(problem=None, wake=lambda: None)

    def lag(retraction: Any) -> Any:
        group = group_of(scene.settings.group_id, retraction)
        return group_lag(kafka_options(ingest), group, ingest.topic(VERDICTS), 10)

    return lambda settled_s: Retractions(ledger, publisher, lag, ingest, [KEY], settled_s=settled_s)


def ends(ledger: Ledger) -> list[Any]:
    return [event.move.rollout for event in ledger.events() if event.move.action == "retracted"]


def test_the_end_is_written_once_with_each_outcome_counted_once(
    scene: Scene, ledger: Ledger, server: Callable[[float], Retractions], tmp_path: Path
) -> None:
    first, second, patient = server(0), server(0), server(600)
    first.tick()
    first.tick()
    assert not ends(ledger), "no worker has read anything"
    (view,) = first.view()
    assert (view.state, sum(view.outcomes.values())) == ("reading", 0)
    with scene.retracting():
        await_that(lambda: len(scene.outcomes()) >= ITEMS)
        producer = KafkaProducer(bootstrap_servers=scene.ingest.bootstrap_servers)
        for record in scene.records(RETRACTIONS)[:3]:  # again, unsigned, and of items that never were
            outcome = Outcome.model_validate_json(record.value)
            media = scene.ingest.media_topic
            other, zeros, forged = (
                outcome.model_copy(update={"id": id}).model_dump_json().encode()
                for id in (f"{outcome.id}000000", f"{media}-0-00", f"{media}-1-0")
            )
            signed = [(value, [(SIGNATURE, sign(KEY, value))]) for value in (other, zeros)]
            for value, headers in ((record.value, record.headers), *signed, (forged, [])):
                producer.send(record.topic, value, record.key, headers).get(30)
        producer.close()

        def patient_has_read() -> bool:
            patient.tick()
            return patient.view()[0].state == "settling"

        await_that(patient_has_read)
        send(scene.ingest, range(ITEMS, ITEMS + 4), tmp_path)
        scene.answer(4)  # by a worker that has not followed

        def followed() -> bool:
            patient.tick()
            return sum(patient.view()[0].outcomes.values()) == ITEMS + 4

        await_that(followed)
        patient.tick()
        assert not ends(ledger), "it was not quiet for long enough"

        def over() -> bool:
            first.tick()
            return bool(ends(ledger))

        await_that(over)
    second.tick()
    patient.tick()
    (turn,) = ends(ledger)
    first_words = {each.id: each.outcome for each in reversed(scene.outcomes())}
    kinds = [kind for id, kind in first_words.items() if not id.endswith("00")]
    assert turn.outcomes == {kind: kinds.count(kind) for kind in ("same", "corrected", "withdrawn")}
    assert sum(turn.outcomes.values()) == ITEMS + 4
    assert replay(ledger.events()).retractions == ()
    (view,) = second.view()
    assert (view.state, view.outcomes) == ("done", turn.outcomes)
    for each in (first, second, patient):
        each.close()
