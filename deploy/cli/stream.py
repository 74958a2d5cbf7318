"""Commands about media and verdicts: verdicts, send, score.

Kafka's client and ONNX Runtime are imported by the commands that need them, which no other waits for.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.output import (
    CommandError,
    JsonFlag,
    client,
    print_json,
    print_table,
    say,
    short,
    warn,
)
from detector.records import Verdict
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings

Files = Annotated[list[Path], typer.Argument(help="images or videos", show_default=False)]
_SHOWN = 20


def verdicts(
    follow: Annotated[
        bool, typer.Option("--follow", help="go on with what is committed from now on")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"the newest so many ({_SHOWN}); with --follow: stop after so many new ones"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show committed verdicts."""
    from deploy.client.kafka import follow_verdicts, newest_verdicts

    ingest, topic = IngestSettings(), DetectorSettings().verdicts_topic
    if follow:
        for verdict in islice(follow_verdicts(ingest, topic), count):
            print_json(verdict) if as_json else say(_line(verdict))
        return
    _show(newest_verdicts(ingest, topic, count or _SHOWN), as_json)


def send(
    files: Files,
    raw: Annotated[bool, typer.Option("--raw", help="as a bare value, not as a CloudEvent")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Send files to the media topic; prints each one's position, which is its verdict's id."""
    from deploy.client.kafka import StreamError, media_producer, send_file

    settings = IngestSettings()
    failed = 0
    with media_producer(settings) as producer:
        for path in files:
            try:
                position = send_file(producer, settings, path, raw=raw)
            except (StreamError, OSError) as error:
                warn(_why(path, error))
                failed += 1
                continue
            print_json({"file": str(path), "id": position}) if as_json else say(f"{position}  {path}")
    _finish(failed, "sent")


def score(files: Files, as_json: JsonFlag = False) -> None:
    """Score files by the live release, here and without Kafka: the same verdict as the stream's."""
    from deploy.client.scoring import NoVerdictError, ScoringError, open_scorer

    failed = 0
    found = []
    try:
        with client() as api, open_scorer(api) as scorer:
            for path in files:
                try:
                    verdict = scorer.score(path)
                except (NoVerdictError, OSError) as error:
                    warn(_why(path, error))
                    failed += 1
                    continue
                if as_json:
                    print_json({"file": str(path), "verdict": verdict.model_dump(mode="json")})
                else:
                    found.append((path, verdict))
    except ScoringError as error:
        raise CommandError(str(error)) from error
    if not as_json:
        print_table("verdicts", ["file", *_COLUMNS], ([path.name, *_cells(v)] for path, v in found))
    _finish(failed, "scored")


_COLUMNS = ("label", "family", "p(family)", "p(fake)", "u", "threshold", "release")


def _cells(v: Verdict) -> list[object]:
    return [
        v.label,
        v.family,
        v.family_probability,
        v.fake_probability,
        v.unknown_score,
        v.unknown_threshold,
        short(v.release),
    ]


def _show(found: Iterable[Verdict], as_json: bool) -> None:
    for verdict in found:
        print_json(verdict) if as_json else say(_line(verdict))


def _line(v: Verdict) -> str:
    return (
        f"{v.id}  {v.label:8}{v.family or '':24}p(fake) {v.fake_probability:.3f}  "
        f"u {v.unknown_score:.2f} of {v.unknown_threshold:.2f}  {short(v.release)}  {_media(v)}"
    )


def _media(v: Verdict) -> str:
    return v.item.media_id or v.item.source


def _why(path: Path, error: Exception) -> str:
    return f"{path}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)


def _finish(failed: int, what: str) -> None:
    if failed:
        raise CommandError(f"{failed} file{'s were' if failed > 1 else ' was'} not {what}")
