"""Records that nobody can score come among pictures: each is one dead letter, and they hold up nothing."""

from collections import Counter
from collections.abc import Sequence

import pytest
from answers import PARTITIONS, PICTURES, Answers
from bars import Bar
from dying import Slot
from kafka import KafkaProducer
from streams import all_of, await_that

from deploy.dead_letters.replay import MOST_REPLAYS, RecordPlace, ReplayOutcome, replay
from ingest.replay import REPLAY_OF
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

POISON: Sequence[bytes | None] = (
    b"",
    None,
    b"\x00" * 100,
    b"%PDF-1.7\n" + b"a" * 500,
    PICTURES[0][:60],
    b"\xff\xd8\xff" + b"a" * 500,
    b"GIF89a" + b"\xff" * 50,
    b"{" * 1000,
)


def poison(settings: IngestSettings, count: int) -> set[str]:
    """Send what cannot be scored; return where each lies."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    sent = [
        producer.send(
            settings.media_topic, POISON[n % len(POISON)], b"poison %d" % n, partition=n % PARTITIONS
        )
        for n in range(count)
    ]
    found = {f"{at.topic}-{at.partition}-{at.offset}" for at in (future.get(60) for future in sent)}
    producer.close()
    return found


def dead_letters(settings: IngestSettings) -> Counter[str]:
    """How often each item is a dead letter, by the item's id."""

    def item(headers: dict[str, bytes]) -> str:
        facts = (headers[f"__forgewatch.errors.{name}"] for name in ("topic", "partition", "offset"))
        return "-".join(fact.decode() for fact in facts)

    letters = all_of(settings.bootstrap_servers, settings.dead_letters_topic)
    return Counter(item(dict(letter.headers)) for letter in letters)


def replay_all(settings: IngestSettings) -> list[ReplayOutcome]:
    letters = all_of(settings.bootstrap_servers, settings.dead_letters_topic)
    places = [RecordPlace(letter.topic, letter.partition, letter.offset) for letter in letters]
    return list(replay(settings, places, 30))


@pytest.mark.bar("B6")
def test_each_record_that_cannot_be_scored_is_one_dead_letter_and_fails_no_more_than_three_times(
    settings: IngestSettings, answers: Answers, slots: list[Slot], bar: Bar
) -> None:
    count = bar.times(24, 1000)
    sent, good = Counter(dict.fromkeys(poison(settings, count // 2), 1)), 3 * count
    answers.send(good)
    sent |= Counter(dict.fromkeys(poison(settings, count - count // 2), 1))
    await_that(answers.reach, 1800)
    await_that(lambda: dead_letters(settings).total() >= count, 300)
    found = dead_letters(settings)
    bar.count(count, lost=len(sent - found) + answers.lost, twice=len(found - sent) + answers.twice)
    assert found == sent
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)

    for turn in range(1, MOST_REPLAYS + 1):
        assert sum(outcome.why_not is None for outcome in replay_all(settings)) == count
        await_that(
            lambda turn=turn: dead_letters(settings).total() >= count * (turn + 1),  # type: ignore[misc]
            600,
        )
    assert {outcome.why_not is None for outcome in replay_all(settings)} == {False}
    media = all_of(settings.bootstrap_servers, settings.media_topic)
    poisoned = [record for record in media if record.key.startswith(b"poison")]
    first = Counter(record.value for record in poisoned if REPLAY_OF not in dict(record.headers))
    again = Counter(record.value for record in poisoned if REPLAY_OF in dict(record.headers))
    assert again == {value: MOST_REPLAYS * times for value, times in first.items()}
