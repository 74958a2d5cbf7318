"""The command `forgewatch lineage`: from a verdict back to people, and from a label on to verdicts."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from deploy.cli.output import JsonFlag, UsageError, client, print_json, print_rows, say, short, warn
from deploy.client.http import LINEAGES
from deploy.lineage.records import (
    ExemplarLineage,
    LabelLineage,
    Learners,
    ReleaseLineage,
    SourceLineage,
    VerdictLineage,
)
from memory.records import LabelEntry

_SHOWN = 10
_SPLITS = ("train", "calibration", "test")


def lineage(
    verdict: Annotated[
        str | None,
        typer.Argument(help="a verdict's id: topic-partition-offset of its item", show_default=False),
    ] = None,
    label: Annotated[int | None, typer.Option(help="from a label's number on")] = None,
    source: Annotated[str | None, typer.Option(help="from a source on")] = None,
    exemplar: Annotated[str | None, typer.Option(help="from an exemplar's id on")] = None,
    release: Annotated[str | None, typer.Option(help="from a release's digest, or its beginning")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Walk from a verdict back to the labels and people behind it, or from one of those on to verdicts."""
    ids = zip(LINEAGES, (verdict, release, label, source, exemplar), strict=True)
    given = [(of, str(id)) for of, id in ids if id is not None]
    if len(given) != 1:
        raise UsageError("give a verdict's id, or one of --label, --source, --exemplar and --release")
    with client() as api:
        ((of, id),) = given
        answer = api.lineage(of, api.full_digest(id) if of == "release" else id)
    if as_json:
        return print_json(answer)
    match answer:
        case VerdictLineage():
            _show_verdict(answer)
        case ReleaseLineage():
            _show_release(answer)
        case LabelLineage():
            say(_label_line(answer.label))
            _show_learners(answer)
        case SourceLineage():
            say(f"source {answer.source}: exemplars in the memory: {_counts(answer.exemplars)}")
            _show_labels(answer.labels)
            _show_learners(answer)
        case ExemplarLineage():
            _show_exemplar(answer)


def _show_verdict(lineage: VerdictLineage) -> None:
    if (verdict := lineage.verdict) is not None:
        family = f" {verdict.family}" if verdict.family else ""
        say(f"verdict {lineage.id}: {verdict.label}{family}, source {verdict.item.source}")
    elif (written := lineage.written) is not None:
        say(f"verdict {lineage.id}: {written.label}, source {written.source}")
    if lineage.taken_back is not None:
        say(lineage.taken_back)
    for problem in lineage.problems:
        warn(problem)
    if lineage.release is not None:
        _show_release(lineage.release)
    columns: Any = {"learnt_as": lambda row: row.learnt.family if row.learnt else row.family}
    columns |= {name: f"learnt.{name}" for name in ("split", "source", "label")}
    title = "nearest exemplars, and the labels that the release learnt them by"
    columns |= {"by": "label.actor", "at": "label.at"}
    print_rows(title, lineage.neighbours, exemplar="exemplar", distance="distance", **columns)


def _show_release(lineage: ReleaseLineage) -> None:
    release = lineage.release
    by = f" asked for by {lineage.requested_by}" if lineage.requested_by else ""
    say(
        f"release {short(release.digest)}: {release.state}, update {release.candidate.update}{by},"
        f" verdicts: {_counts(lineage.verdicts)}"
    )
    if lineage.parents:
        say(f"trained from {', then '.join(str(short(digest)) for digest in lineage.parents)}")
    print_rows("its history", lineage.history, **{"#": "sequence"}, at="at", by="actor", action="action")
    if lineage.labels is None:
        return say("its training data are not known: it was made before releases had a training snapshot")
    columns: Any = {"label": "label", "what": "entry.what", "by": "entry.actor", "at": "entry.at"}
    columns |= {split: lambda learnt, of=split: learnt.items.get(of, 0) for split in _SPLITS}
    print_rows("the labels that it was made of", lineage.labels, **columns)


def _show_exemplar(lineage: ExemplarLineage) -> None:
    row = lineage.exemplar
    now = f"{row.shelf}, {row.family or 'no label'}, source {row.source}" if row else "gone"
    say(f"exemplar {lineage.id}: {now}")
    _show_labels(lineage.labels)
    _show_learners(lineage)


def _show_labels(labels: tuple[LabelEntry, ...]) -> None:
    for entry in labels[:_SHOWN]:
        say(_label_line(entry))
    if len(labels) > _SHOWN:
        say(f"and {len(labels) - _SHOWN} labels before these")


def _show_learners(learners: Learners) -> None:
    columns: Any = {"release": lambda row: short(row.release.digest), "state": "release.state"}
    columns |= {"its_exemplars_there": lambda row: _counts(row.items)}
    columns |= {"through": lambda row: short(row.through), "verdicts": lambda row: _counts(row.verdicts)}
    columns |= {"newest_verdict": lambda row: row.newest[0].id if row.newest else None}
    print_rows("releases that it went into", learners.releases, **columns)
    if learners.unsaid:
        say(f"not known of {len(learners.unsaid)} releases from before there were training snapshots")


def _label_line(entry: LabelEntry) -> str:
    undone = f", undone by {entry.undone_by}" if entry.undone_by else ""
    return f"label {entry.label}: {entry.exemplars} exemplars called {entry.what} by {entry.actor}{undone}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
