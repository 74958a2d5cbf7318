"""A dead letter becomes the record again that it was, to be read once more."""

from ingest.dead_letters import PREFIX, as_it_came
from ingest.records import InRecord, OutRecord

# The compacted topic of what was replayed: the key is the letter's id.
REPLAYS = "replays"

# Headers of a replayed record: the letter's id, and how often the record was replayed by then.
REPLAY_OF, REPLAY_COUNT = "__forgewatch.replay_of", "__forgewatch.replay_count"

_OMITTED = "_omitted_bytes"


class ReplayError(Exception):
    """Fatal for this letter: the text says why it cannot be replayed."""


def replay_count(letter: InRecord) -> int:
    """How often the record in this letter was replayed before; a number that is none counts as 0."""
    value = dict(letter.headers).get(REPLAY_COUNT) or b""
    return int(value) if value.isdigit() and len(value) < 4 else 0


def origin(letter: InRecord) -> tuple[str, int, int]:
    """Topic, partition and offset of the record that became this letter. Raises ReplayError."""
    facts = {name: (raw or b"").decode(errors="replace") for name, raw in letter.headers}
    try:
        return facts[f"{PREFIX}topic"], int(facts[f"{PREFIX}partition"]), int(facts[f"{PREFIX}offset"])
    except (KeyError, ValueError) as error:
        raise ReplayError("it does not say where it came from: it is no dead letter of ours") from error


def is_cut(letter: InRecord) -> bool:
    """Whether the letter lacks a part of its record, which was too large for it."""
    return any(name.startswith(PREFIX) and name.endswith(_OMITTED) for name, _ in letter.headers)


def build_replay(letter: InRecord, record: InRecord) -> OutRecord:
    """Give the record as it came, for the topic that it came on, marked as a replay.

    record: the letter itself, or, where that is cut, the original. Kafka-python cannot write a header
    whose value is null: it is empty, as it is in the letter. Raises ReplayError.
    """
    topic, _, _ = origin(letter)
    kept = [
        (name, raw or b"")
        for name, raw in as_it_came(record.headers)
        if name not in (REPLAY_OF, REPLAY_COUNT)
    ]
    count = replay_count(letter) + 1
    marks = [(REPLAY_OF, letter.id.encode()), (REPLAY_COUNT, str(count).encode())]
    return OutRecord(topic, record.key, record.value, (*kept, *marks))
