"""Workers are killed while they take verdicts back, beside a stream that goes on."""

import multiprocessing
import threading
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from bars import Bar
from kafka import KafkaConsumer
from streams import await_that, reader_of
from taken_back import ITEMS, Scene, retract_until_killed, send

from detector.records import RETRACTIONS, Outcome

pytestmark = pytest.mark.system

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


@pytest.mark.bar("B1")
def test_each_verdict_has_one_outcome_though_workers_are_killed_while_the_stream_goes_on(
    scene: Scene, tmp_path: Path, bar: Bar
) -> None:
    count = bar.times(120, 10_000)
    send(scene.ingest, range(ITEMS, count), tmp_path)
    scene.answer(count - ITEMS)
    listed = {record.key for record in scene.verdicts()}
    assert len(listed) == count
    scene.roll_back()
    outcomes, began = Outcomes(scene), time.monotonic()
    stream = threading.Thread(target=scene.answer_on, args=(count // 4, tmp_path))
    stream.start()
    process = started(scene)
    try:
        for kill in range(1, KILLS + 1):
            due = count * kill // (KILLS + 1)
            await_that(lambda due=due: outcomes.read() >= due, 1200)  # type: ignore[misc]
            process.kill()
            process.join()
            process = started(scene)
        await_that(lambda: outcomes.read() >= count, 1200)
        stream.join(600)
        outcomes.read()
    finally:
        process.kill()
        process.join()
        outcomes.close()
    lost, twice = count - len(outcomes.counted), sum(n > 1 for n in outcomes.counted.values())
    bar.count(KILLS, lost=lost, twice=twice)
    print(f"{count} verdicts, {time.monotonic() - began:.0f} s, outcomes {dict(outcomes.kinds)}")
    assert (lost, twice) == (0, 0)
