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
from deploy.records import LabelEntry

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
        found = api.lineage(of, api.full_digest(id) if of == "release" else id)
    if as_json:
        return print_json(found)
    match found:
        case VerdictLineage():
            _show_verdict(found)
        case ReleaseLineage():
            _show_release(found)
        case LabelLineage():
            say(_label_line(found.label))
            _show_learners(found)
        case SourceLineage():
            say(f"source {found.source}: exemplars in the memory: {_counts(found.exemplars)}")
            _show_labels(found.labels)
            _show_learners(found)
        case ExemplarLineage():
            _show_exemplar(found)


def _show_verdict(found: VerdictLineage) -> None:
    if (verdict := found.verdict) is not None:
        family = f" {verdict.family}" if verdict.family else ""
        say(f"verdict {found.id}: {verdict.label}{family}, source {verdict.item.source}")
    elif (written := found.written) is not None:
        say(f"verdict {found.id}: {written.label}, source {written.source}")
    if found.taken_back is not None:
        say(found.taken_back)
    for problem in found.problems:
        warn(problem)
    if found.release is not None:
        _show_release(found.release)
    columns: Any = {"learnt_as": lambda one: one.learnt.family if one.learnt else one.family}
    columns |= {name: f"learnt.{name}" for name in ("split", "source", "label")}
    title = "nearest exemplars, and the labels that the release learnt them by"
    columns |= {"by": "label.actor", "at": "label.at"}
    print_rows(title, found.neighbours, exemplar="exemplar", distance="distance", **columns)


def _show_release(found: ReleaseLineage) -> None:
    release = found.release
    asked = f" asked for by {found.requested_by}" if found.requested_by else ""
    say(
        f"release {short(release.digest)}: {release.state}, update {release.candidate.update}{asked},"
        f" verdicts: {_counts(found.verdicts)}"
    )
    if found.parents:
        say(f"trained from {', then '.join(str(short(digest)) for digest in found.parents)}")
    print_rows("its history", found.history, **{"#": "sequence"}, at="at", by="actor", action="action")
    if found.labels is None:
        return say("its training data are not known: it was made before releases had a training snapshot")
    columns: Any = {"label": "label", "what": "entry.what", "by": "entry.actor", "at": "entry.at"}
    columns |= {split: lambda learnt, of=split: learnt.items.get(of, 0) for split in _SPLITS}
    print_rows("the labels that it was made of", found.labels, **columns)


def _show_exemplar(found: ExemplarLineage) -> None:
    row = found.exemplar
    now = f"{row.shelf}, {row.family or 'no label'}, source {row.source}" if row else "gone"
    say(f"exemplar {found.id}: {now}")
    _show_labels(found.labels)
    _show_learners(found)


def _show_labels(labels: tuple[LabelEntry, ...]) -> None:
    for entry in labels[:_SHOWN]:
        say(_label_line(entry))
    if len(labels) > _SHOWN:
        say(f"and {len(labels) - _SHOWN} labels before these")


def _show_learners(found: Learners) -> None:
    columns: Any = {"release": lambda one: short(one.release.digest), "state": "release.state"}
    columns |= {"its_exemplars_there": lambda one: _counts(one.items)}
    columns |= {"through": lambda one: short(one.through), "verdicts": lambda one: _counts(one.verdicts)}
    columns |= {"newest_verdict": lambda one: one.newest[0].id if one.newest else None}
    print_rows("releases that it went into", found.releases, **columns)
    if found.unsaid:
        say(f"not known of {len(found.unsaid)} releases from before there were training snapshots")


def _label_line(entry: LabelEntry) -> str:
    undone = f", undone by {entry.undone_by}" if entry.undone_by else ""
    return f"label {entry.label}: {entry.exemplars} exemplars called {entry.what} by {entry.actor}{undone}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
