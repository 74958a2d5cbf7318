"""`forgewatch dlq` on a real broker: each dead letter is replayed once, whatever breaks in between."""

import json
from collections import Counter

import pytest
from kafka import KafkaProducer
from streams import all_of

from deploy import dead_letters as replay_module
from deploy.cli.main import main
from deploy.layouts import all_topics
from ingest.dead_letters import REPLAY_COUNT, REPLAY_OF, dead_letter
from ingest.kafka import sink as sink_module
from ingest.kafka.topics import ensure_topics
from ingest.records import InRecord, MediaError

pytestmark = pytest.mark.system

LETTERS = 12


@pytest.fixture
def forgewatch(settings, monkeypatch, capsys):
    """Runs a command on topics of this test; gives its exit code and the lines that it printed and warned."""
    ensure_topics(settings, all_topics(settings, 2))
    monkeypatch.setenv("FORGEWATCH_INGEST_BOOTSTRAP_SERVERS", settings.bootstrap_servers)
    monkeypatch.setenv("FORGEWATCH_INGEST_TOPIC_PREFIX", settings.topic_prefix)
    monkeypatch.setenv("COLUMNS", "250")

    def run(*words):
        code = main(["dlq", *words])
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err.splitlines()

    return run


def refuse(settings, *records):
    """Write the dead letters of these records: every third for its stage, the others for their bytes."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for record in records:
        reason = "too_many_crops" if record.offset % 3 == 0 else "damaged"
        letter = dead_letter(record, "decode", MediaError(reason, "no picture"), settings)
        send(producer, letter, record.partition)
    producer.close()


def send(producer, record, partition):
    headers = list(record.headers)
    producer.send(record.topic, record.value, record.key, headers, partition).get(30)


@pytest.fixture
def refused(settings, forgewatch):
    records = [
        InRecord(
            *(settings.media_topic, n % 2, n, 0, b"key %d" % n, b"bytes %d" % n),
            (("ce_source", b"camera"), ("mine", b"\xff")),
        )
        for n in range(LETTERS)
    ]
    refuse(settings, *records)
    return records


def on_the_media_topic(settings):
    return all_of(settings.bootstrap_servers, settings.media_topic)


def test_letters_are_listed_by_reason_shown_and_replayed_once_as_they_came(settings, forgewatch, refused):
    code, out, _ = forgewatch("list", "--reason", "too_many_crops", "--json")
    (listed,) = (json.loads(line) for line in out)
    assert (code, len(listed), {each["reason"] for each in listed}) == (0, 4, {"too_many_crops"})
    assert json.loads(forgewatch("list", "--source", "other", "--json")[1][0]) == []
    assert len(json.loads(forgewatch("list", "--since", "2020-01-01", "--json")[1][0])) == LETTERS
    code, out, _ = forgewatch("show", listed[0]["id"])
    assert (code, "message    no picture" in out, "replayed   False" in out) == (0, True, True)

    code, out, _ = forgewatch("replay", "--reason", "too_many_crops")
    assert (code, out) == (0, ["4 replayed, 0 not"])
    sent = on_the_media_topic(settings)
    wanted = {record.key: record for record in refused if record.offset % 3 == 0}
    assert sorted(record.key for record in sent) == sorted(wanted)
    for record in sent:
        assert record.value == wanted[record.key].value
        assert tuple(record.headers[:2]) == wanted[record.key].headers
        assert dict(record.headers)[REPLAY_OF].startswith(settings.dead_letters_topic.encode())
    assert "replayed   True" in forgewatch("show", listed[0]["id"])[1]

    code, _, warned = forgewatch("replay", listed[0]["id"])
    assert (code, warned[0]) == (1, f"{listed[0]['id']}: it was replayed before")
    assert len(on_the_media_topic(settings)) == 4
    assert forgewatch("replay", listed[0]["id"], "--force")[0] == 0
    assert len(on_the_media_topic(settings)) == 5


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("replay",), 2, "name the dead letters, or choose them by --reason"),
        (("replay", "0-1", "--all"), 2, "name the dead letters, or choose"),
        (("replay", "0_1"), 2, "0_1 is no dead letter's id, which is PARTITION-OFFSET"),
        (("replay", "0-99"), 1, "1 of 1 dead letters were not replayed"),
        (("show", "7-1"), 1, "there is no dead letter 7-1"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(forgewatch, refused, words, code, told):
    ended, _, warned = forgewatch(*words)
    assert (ended, told in warned[-1]) == (code, True), warned


def test_what_failed_three_times_is_replayed_by_force_alone(settings, forgewatch):
    count, headers = b"2", (("mine", b"1"), (REPLAY_OF, b"x"))
    refuse(settings, InRecord(settings.media_topic, 0, 1, 0, b"k", b"v", (*headers, (REPLAY_COUNT, count))))
    code, _, warned = forgewatch("replay", "--all")
    assert (code, warned[0]) == (1, "0-0: it failed 3 times: --force tries it once more")
    assert forgewatch("replay", "--all", "--force")[0] == 0
    (sent,) = on_the_media_topic(settings)
    told = [("mine", b"1"), (REPLAY_OF, f"{settings.dead_letters_topic}-0-0".encode()), (REPLAY_COUNT, b"3")]
    assert list(sent.headers) == told


def break_transactions(monkeypatch, every, *, before_commit):
    """Break each so-manieth transaction, before its commit or after it."""
    real, numbers = sink_module._transaction, list[int]()

    def transaction(producer, records, *rest):
        numbers.append(len(records))
        if len(numbers) % every:
            return real(producer, records, *rest)
        if before_commit:
            producer.begin_transaction()
            for record in records:
                producer.send(record.topic, record.value, record.key, list(record.headers))
            producer.flush()
        else:
            real(producer, records, *rest)
        raise OSError("the line broke")

    monkeypatch.setattr(sink_module, "_transaction", transaction)
    monkeypatch.setattr(replay_module, "_AT_ONCE", 2)
    return numbers


def replay_until_done(forgewatch):
    """Replay all again and again; returns how often that was broken off."""
    broken = 0
    while "the line broke" in (forgewatch("replay", "--all")[2] or [""])[-1]:
        broken += 1
        assert broken < LETTERS
    return broken


@pytest.mark.bar("B6")
@pytest.mark.parametrize("before_commit", [True, False])
def test_each_letter_is_replayed_once(settings, forgewatch, refused, monkeypatch, bar, before_commit):
    break_transactions(monkeypatch, 3, before_commit=before_commit)
    broken = replay_until_done(forgewatch)
    counted = Counter(record.key for record in on_the_media_topic(settings))
    lost, twice = LETTERS - len(counted), sum(count > 1 for count in counted.values())
    bar.count(broken, lost=lost, twice=twice)
    assert (broken > 1, lost, twice) == (True, 0, 0)


@pytest.mark.bar("B6")
def test_control_a_mark_apart_from_its_record_replays_twice(settings, forgewatch, refused, monkeypatch):
    real, broken = sink_module._transaction, list[int]()

    def apart(producer, records, *rest):
        media = [record for record in records if record.topic == settings.media_topic]
        real(producer, media, *rest)
        if not broken:
            broken.append(len(media))
            raise OSError("the line broke between both")
        return real(producer, [record for record in records if record not in media], *rest)

    monkeypatch.setattr(sink_module, "_transaction", apart)
    monkeypatch.setattr(replay_module, "_AT_ONCE", 2)
    replay_until_done(forgewatch)
    counted = Counter(record.key for record in on_the_media_topic(settings))
    assert sum(count > 1 for count in counted.values()) == broken[0]
