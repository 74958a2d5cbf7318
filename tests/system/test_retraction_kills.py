"""Workers are killed while they take verdicts back, beside a stream that goes on.

FORGEWATCH_TEST_RETRACTED=10000 is the measured form; by default it is short.
"""

import multiprocessing
import os
import threading
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from streams import await_that, reader_of
from taken_back import ITEMS, Scene, retract_until_killed, send

from detector.records import RETRACTIONS, Outcome

pytestmark = pytest.mark.system

LISTED = int(os.environ.get("FORGEWATCH_TEST_RETRACTED", "120"))
KILLS = 5


class Outcomes:
    """Every outcome that is committed, by its id, each as often as it came."""

    def __init__(self, scene: Scene) -> None:
        topic = scene.ingest.topic(RETRACTIONS)
        self._reader: KafkaConsumer = reader_of(scene.ingest.bootstrap_servers, topic)
        self.counted = Counter[str]()
        self.kinds = Counter[str]()

    def close(self) -> None:
        self._reader.close()

    def read(self) -> int:
        for records in self._reader.poll(timeout_ms=200).values():
            for record in records:
                outcome = Outcome.model_validate_json(record.value)
                self.counted[outcome.id] += 1
                self.kinds[outcome.outcome] += 1
        return len(self.counted)


def started(scene: Scene) -> BaseProcess:
    about = (scene.ingest, scene.settings, scene.rollout, scene.bad.folder, scene.good.folder)
    process = multiprocessing.get_context("spawn").Process(target=retract_until_killed, args=about)
    process.start()
    return process


@pytest.mark.timeout(3600)
def test_each_verdict_has_one_outcome_though_workers_are_killed_while_the_stream_goes_on(
    scene: Scene, tmp_path: Path
) -> None:
    send(scene.ingest, range(ITEMS, LISTED), tmp_path)
    scene.answer(LISTED - ITEMS)
    listed = {record.key for record in scene.verdicts()}
    assert len(listed) == LISTED
    scene.roll_back()
    outcomes, began = Outcomes(scene), time.monotonic()
    stream = threading.Thread(target=scene.answer_on, args=(LISTED // 4, tmp_path))
    stream.start()
    process = started(scene)
    try:
        for kill in range(1, KILLS + 1):
            due = LISTED * kill // (KILLS + 1)
            await_that(lambda due=due: outcomes.read() >= due, 1200)  # type: ignore[misc]
            process.kill()
            process.join()
            process = started(scene)
        await_that(lambda: outcomes.read() >= LISTED, 1200)
        stream.join(600)
        outcomes.read()
    finally:
        process.kill()
        process.join()
        outcomes.close()
    assert Counter(outcomes.counted.values()) == {1: LISTED}
    took_s = time.monotonic() - began
    print(f"{LISTED} verdicts, {KILLS} kills, {took_s:.0f} s, outcomes {dict(outcomes.kinds)}")
