"""Dead letters on a real broker are shown newest first, each once, over as many pages as they take."""

import hashlib
from collections.abc import Callable

import pytest
from kafka import KafkaProducer

from deploy.dead_letters.reading import DeadLetter, read_page
from ingest.dead_letters import dead_letter
from ingest.kafka.compacted import TopicError
from ingest.records import InRecord, MediaError
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


def test_each_is_shown_once_newest_first_with_its_reason_and_without_its_bytes(
    settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    with pytest.raises(TopicError, match="no topic"):
        read_page(settings, {}, 10, 10)
    make_topic(partitions=2, name=settings.dead_letters_topic)
    assert read_page(settings, {}, 10, 10).letters == ()
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for number in range(25):
        headers = (("ce_id", b"e\xff"), ("ce_source", b"camera"))
        record = InRecord("media", 3, number, 0, b"k", b"bytes %d" % number, headers)
        letter = dead_letter(record, "decode", MediaError("damaged", "no picture"), settings)
        sent = producer.send(
            letter.topic, letter.value, letter.key, list(letter.headers), number % 3 == 0, 1000 + number
        )
        sent.get(30)
    producer.close()

    shown: list[DeadLetter] = []
    before: dict[int, int] | None = {}
    while before is not None:
        page = read_page(settings, before, 10, 10)
        shown += page.letters
        before = None if page.older is None else dict(page.older)
    assert [letter.at_ms for letter in shown] == [1000 + number for number in reversed(range(25))]
    newest = shown[0]
    assert (newest.facts["reason"], newest.facts["stage"], newest.facts["offset"]) == (
        "damaged",
        "decode",
        "24",
    )
    assert (newest.event, newest.source, newest.size) == ("e�", "camera", 8)
    assert newest.digest == hashlib.sha256(b"bytes 24").hexdigest()
