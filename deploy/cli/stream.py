"""Commands about media and verdicts: verdicts, send, score.

Kafka's client and ONNX Runtime are imported by the commands that need them, which no other waits for.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import CommandError, JsonFlag, UsageError, client, short, show_result, warn
from detector.records import VERDICTS, Verdict, Withdrawal
from ingest.settings import IngestSettings

if TYPE_CHECKING:
    from deploy.client.scoring import Scorer

Files = Annotated[list[Path], typer.Argument(help="images or videos", show_default=False)]
SourceOption = Annotated[str | None, typer.Option("--source", help="where they come from; else their folder")]
_SHOWN = 20


def verdicts(
    follow: Annotated[
        bool, typer.Option("--follow", help="print only verdicts committed from now on")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"the newest so many ({_SHOWN}); with --follow: stop after so many new ones"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show committed verdicts, with those that correct or withdraw one of a release that was taken back."""
    from deploy.client.kafka import follow_verdicts, newest_verdicts

    ingest = IngestSettings()
    topic = ingest.topic(VERDICTS)
    if follow:
        for verdict in islice(follow_verdicts(ingest, topic), count):
            show_result(verdict, as_json, _line(verdict))
        return
    _show(newest_verdicts(ingest, topic, count or _SHOWN), as_json)


def send(
    files: Files,
    raw: Annotated[bool, typer.Option("--raw", help="as a bare value, not as a CloudEvent")] = False,
    source: SourceOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Send files to the media topic, and print their verdicts; a verdict's id is its position."""
    from deploy.client.kafka import StreamError, answers, media_producer, send_file
    from deploy.client.pictures import refusal, sentence
    from ingest.kafka.access import BrokerRefusedError

    if raw and source is not None:
        raise UsageError("a bare value carries no source: leave --raw or --source out")
    settings, failed, sent = IngestSettings(), 0, dict[str, Path]()

    def show(id_: str, verdict: Verdict | None, words: str) -> None:
        path = sent.pop(id_)
        document = {"file": str(path), "id": id_, "verdict": verdict, "sentence": words}
        show_result(document, as_json, f"{id_}  {path}  {words}")

    with media_producer(settings) as producer, ExitStack() as reading:
        follow, unanswered = None, _LATE
        try:
            follow = reading.enter_context(answers(settings))
        except (StreamError, BrokerRefusedError) as error:  # whoever may send may not read
            unanswered = f"sent; its verdict cannot be read: {error}"
        for path in files:
            try:
                sent[send_file(producer, settings, path, raw=raw, source=source)] = path
            except (StreamError, OSError) as error:
                warn(_why(path, error))
                failed += 1
        for id_, answer in follow(list(sent)) if follow else ():
            if isinstance(answer, Verdict):
                show(id_, answer, sentence(answer))
            else:
                show(id_, None, f"No verdict. {refusal(answer.facts['reason'], answer.facts['message'])}")
        for id_ in list(sent):
            show(id_, None, unanswered)
    _finish(failed, "sent")


_LATE = "sent; no answer within 30 s: see `forgewatch status` and `forgewatch verdicts`"


def score(
    files: Files,
    map_dir: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="DIR",
            help="draw there each map over its picture, each time line under its video",
        ),
    ] = None,
    dense: Annotated[
        bool, typer.Option("--dense", help="map also media called real, which the stream does not")
    ] = False,
    source: SourceOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Score files by the live release, here and without Kafka: the same verdict as the stream's."""
    from deploy.client.pictures import sentence
    from deploy.client.scoring import NoVerdictError, open_scorer

    if map_dir is not None:
        if map_dir.exists() and not map_dir.is_dir():
            raise CommandError(f"{map_dir} is a file: name a folder")
        map_dir.mkdir(parents=True, exist_ok=True)

    failed, no_scan = 0, False
    with client() as api, open_scorer(api) as scorer:
        if (map_dir is not None or dense) and (problem := scorer.map_problem):
            warn(problem)
        for path in files:
            try:
                verdict = scorer.score(path, dense=dense, source=source)
            except (NoVerdictError, OSError) as error:
                warn(_why(path, error))
                failed += 1
                continue
            if map_dir is not None:
                draw(scorer, path, verdict, map_dir)
            no_scan |= verdict.kind == "video" and not scorer.scans
            text = sentence(verdict)
            document = {"file": str(path), "verdict": verdict, "sentence": text}
            show_result(document, as_json, f"{path}  {text}")
    if no_scan and map_dir is not None:
        warn("the live release has no scanner and finds no forged stretches: see updater/OPERATIONS.md")
    _finish(failed, "scored")


def draw(scorer: "Scorer", path: Path, verdict: Verdict, folder: Path) -> None:
    """Draw the map and the time line that a verdict has, each in a file of its own."""
    from deploy.client.pictures import draw_map, draw_scan
    from ingest.sandbox.decode import DecodeError

    try:
        if verdict.map is not None:
            picture = draw_map(scorer.picture(path, verdict), verdict.width, verdict.map)
            picture.save(_free(folder, path, "map"))
        if verdict.scan is not None:
            frames = scorer.frames(path, verdict)
            picture = draw_scan(frames, verdict.scan, verdict.segments or ())
            picture.save(_free(folder, path, "time"))
    except (DecodeError, OSError) as error:
        warn(f"not drawn: {_why(path, error)}")


def _show(verdicts: Iterable[Verdict | Withdrawal], as_json: bool) -> None:
    for verdict in verdicts:
        show_result(verdict, as_json, _line(verdict))


def _line(v: Verdict | Withdrawal) -> str:
    if isinstance(v, Withdrawal):
        return f"{v.id}  withdrawn, {v.reason}  {short(v.release)}  {_media(v)}"
    unscanned = "" if v.unscanned is None else f"  not scanned: {v.unscanned}"
    corrects = f"  corrects {short(v.supersedes)}" if v.supersedes else ""
    return (
        f"{v.id}  {v.label:8}{v.family or '':24}p(fake) {v.fake_probability:.3f}  "
        f"u {v.unknown_score:.2f} of {v.unknown_threshold:.2f}  {short(v.release)}{corrects}  {_media(v)}"
        f"{unscanned}"
    )


def _media(v: Verdict | Withdrawal) -> str:
    return v.item.media_id or v.item.source


def _why(path: Path, error: Exception) -> str:
    return f"{path}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)


def _free(folder: Path, path: Path, kind: str) -> Path:
    """Return where a picture about a file goes: files of one name in several folders keep one each."""
    names = (f"{path.name}.{kind}.png", *(f"{path.name}-{number}.{kind}.png" for number in range(2, 10_000)))
    return next(folder / name for name in names if not (folder / name).exists())


def _finish(failed: int, action: str) -> None:
    if failed:
        raise CommandError(f"{failed} file{'s were' if failed > 1 else ' was'} not {action}")
