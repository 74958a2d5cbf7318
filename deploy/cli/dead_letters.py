"""`forgewatch dlq`: failed items, their reasons and their replay.

Kafka's client is imported by the commands that need it, which no other waits for.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.output import CommandError, JsonFlag, UsageError, print_json, print_rows, say, warn
from deploy.settings import DeploySettings
from ingest.settings import IngestSettings

if TYPE_CHECKING:
    from deploy.dead_letters import DeadLetter, RecordPlace

_PAGE = 500


@dataclass(frozen=True)
class LetterFilter:
    """Conditions on a letter; None: no condition."""

    reason: str | None = None
    stage: str | None = None
    source: str | None = None
    since: datetime | None = None

    def takes(self, letter: "DeadLetter") -> bool:
        """Whether this letter is one of those."""
        return (
            self.reason in (None, letter.facts.get("reason"))
            and self.stage in (None, letter.facts.get("stage"))
            and self.source in (None, letter.source)
            and (self.since is None or letter.at_ms >= self.since.timestamp() * 1000)
        )


def find(ingest: IngestSettings, wanted: LetterFilter, timeout_s: float) -> Iterator["DeadLetter"]:
    """Yield the letters, the newest of each page first. Raises TopicError."""
    from deploy.dead_letters import read_page

    before: dict[int, int] | None = {}
    while before is not None:
        page = read_page(ingest, before, _PAGE, timeout_s)
        yield from filter(wanted.takes, page.letters)
        before = None if page.older is None else dict(page.older)


app = typer.Typer(help="Look at the dead letters, and have them scored once more.")

Id = Annotated[str, typer.Argument(help="PARTITION-OFFSET, as `forgewatch dlq list` has it")]
Reason = Annotated[str | None, typer.Option(help="only of this reason")]
Stage = Annotated[str | None, typer.Option(help="only of this stage")]
OfSource = Annotated[str | None, typer.Option("--source", help="only of this CloudEvents source")]
Since = Annotated[datetime | None, typer.Option(help="only failures at this time or later")]


@app.command("list")
def list_(
    reason: Reason = None,
    stage: Stage = None,
    source: OfSource = None,
    since: Since = None,
    count: Annotated[int, typer.Option(min=1, help="the newest so many")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List the newest dead letters, of one reason, stage, source or time where that is asked."""
    from deploy.dead_letters import replayed_before

    ingest, timeout_s = IngestSettings(), DeploySettings().kafka_timeout_s
    letters = list(islice(find(ingest, _letter_filter(reason, stage, source, since), timeout_s), count))
    done = replayed_before(ingest, timeout_s)
    if as_json:
        return print_json([_letter_fields(letter, ingest, done) for letter in letters])
    columns: Any = {"id": lambda letter: f"{letter.partition}-{letter.offset}"}
    columns |= {"when": lambda letter: datetime.fromtimestamp(letter.at_ms / 1000, UTC)}
    columns |= {"original": _original, "source": "source"}
    columns |= {name: lambda letter, of=name: letter.facts.get(of) for name in ("stage", "reason")}
    columns |= {"message": lambda letter: letter.facts.get("message", "")}
    columns |= {"replayed": lambda letter: "yes" if _id(letter, ingest) in done else None}
    print_rows("dead letters", letters, **columns)


@app.command()
def show(letter: Id, as_json: JsonFlag = False) -> None:
    """Show all that is said of one dead letter; never its bytes, which are a stranger's."""
    from deploy.dead_letters import read_letter, replayed_before
    from ingest.reread import MediaReader

    ingest = IngestSettings()
    done = replayed_before(ingest, DeploySettings().kafka_timeout_s)
    with MediaReader(ingest) as reader:
        records = [record for _, record in reader.records([_place(letter, ingest)])]
    if not records:
        raise CommandError(f"there is no dead letter {letter}: `forgewatch dlq list` has those that are kept")
    fields = _letter_fields(read_letter(records[0]), ingest, done)
    if as_json:
        return print_json(fields)
    for name, value in fields.items():
        say(f"{name:<10} {'' if value is None else value}")


@app.command()
def replay(
    letters: Annotated[
        list[str] | None,
        typer.Argument(help="PARTITION-OFFSET of each; or choose by the options", show_default=False),
    ] = None,
    reason: Reason = None,
    stage: Stage = None,
    source: OfSource = None,
    since: Since = None,
    everything: Annotated[bool, typer.Option("--all", help="all that are kept")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="also items that were replayed, or that failed three times")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Send records to their topic once more, as they came: each once, and marked as a replay."""
    from deploy.dead_letters import RecordPlace
    from deploy.dead_letters import replay as replay_them

    ingest, timeout_s = IngestSettings(), DeploySettings().kafka_timeout_s
    chosen = any(option is not None for option in (reason, stage, source, since))
    if (letters is not None) + chosen + everything != 1:
        raise UsageError("name the dead letters, or choose them by --reason and its like, or say --all")
    counted, topic = Counter[bool](), ingest.dead_letters_topic
    if letters is not None:
        places = [_place(letter, ingest) for letter in letters]
    else:
        matches = list(find(ingest, _letter_filter(reason, stage, source, since), timeout_s))
        # The oldest first, so that what has one key keeps its order.
        places = [RecordPlace(topic, letter.partition, letter.offset) for letter in reversed(matches)]
    for outcome in replay_them(ingest, places, timeout_s, force=force):
        counted[outcome.why_not is None] += 1
        if as_json:
            print_json({"letter": outcome.letter, "why_not": outcome.why_not})
        elif outcome.why_not is not None:
            warn(f"{outcome.letter.removeprefix(f'{topic}-')}: {outcome.why_not}")
    if not as_json:
        say(f"{counted[True]} replayed, {counted[False]} not")
    if counted[False]:
        raise CommandError(f"{counted[False]} of {counted.total()} dead letters were not replayed")


def _letter_filter(
    reason: str | None, stage: str | None, source: str | None, since: datetime | None
) -> LetterFilter:
    return LetterFilter(reason, stage, source, since.astimezone() if since else None)


def _place(letter: str, ingest: IngestSettings) -> "RecordPlace":
    from deploy.dead_letters import RecordPlace

    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,18})", letter)
    if match is None:
        raise UsageError(f"{letter} is no dead letter's id, which is PARTITION-OFFSET, such as 0-15")
    return RecordPlace(ingest.dead_letters_topic, int(match[1]), int(match[2]))


def _id(letter: "DeadLetter", ingest: IngestSettings) -> str:
    return f"{ingest.dead_letters_topic}-{letter.partition}-{letter.offset}"


def _original(letter: "DeadLetter") -> str:
    return "-".join(letter.facts.get(name, "?") for name in ("topic", "partition", "offset"))


def _letter_fields(letter: "DeadLetter", ingest: IngestSettings, done: set[str]) -> dict[str, object]:
    return {
        "id": f"{letter.partition}-{letter.offset}",
        "at": datetime.fromtimestamp(letter.at_ms / 1000, UTC).isoformat(),
        "original": _original(letter),
        "event": letter.event,
        "source": letter.source,
        **{name: letter.facts.get(name) for name in ("stage", "reason", "exception", "message")},
        "bytes": letter.size,
        "sha256": letter.digest,
        "replayed": _id(letter, ingest) in done,
    }
