"""`forgewatch try DIR`: from labelled folders to a live release, step by step, by the other commands.

What is done already is asked of the server, so that a run that was stopped goes on where it was. Nothing is
labelled but by the folder that a person put it in.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from deploy.cli.memory import SourceOption, follow_update, import_, show_outlook
from deploy.cli.output import ActorOption, CommandError, client, print_table, progress_bar, say, short, warn
from deploy.cli.releases import asked_reasons, show_findings, still_lacks
from deploy.client.http import Client
from deploy.release_records import ReleaseDetail
from memory.records import REAL
from updater.records import UpdateRun

_IMPORT_S, _SCORE_S = 0.2, 0.3
"""about what a picture takes on two cores"""
_USUAL_UPDATE = "a minute or two on two cores"
_MOST_SHOWN = 150
"""pictures that are scored before and after"""
_DIGESTS_AT_ONCE = 500
_LABELS = (REAL, "fake", "unknown")


def try_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="DIR/real/… and DIR/FAMILY/…: only you know their classes")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", help="ask nothing; a release with findings is left to a person")
    ] = False,
    source: SourceOption = None,
    actor: ActorOption = None,
) -> None:
    """Go the whole way with your own pictures, from import to approval; run it again to go on."""
    if not folder.is_dir():
        raise CommandError(f"{folder} is no folder: `forgewatch score FILE` prints the verdict on a file")
    asks = sys.stdin.isatty() and not yes
    with client(actor) as api:
        api.status()  # nobody answers: the error says how to start a stack
        files = _looked_at(folder)
        _step(1, "Import them, labelled by folder name", _seconds(len(files), _IMPORT_S))
        import_(folder, layout=None, source=source, actor=actor, as_json=False)
        source = source or f"import:{folder.resolve().name}"
        _step(2, "Families that an update will and will not know", "a second")
        outlook = api.outlook()
        show_outlook(outlook)
        if api.status().live is None and not outlook.items.keys() - outlook.waiting.keys() - {REAL}:
            raise CommandError(
                "there is nothing to train yet: no release is live, and no family has as many labels as"
                " step 2 asks for. Add to the folders, or put families that are alike into one, and run the"
                " same command again"
            )
        if asks and not typer.confirm("Train on this now?", default=True):
            say("Add the missing files to the folders, and run the same command again.")
            return
        _step(3, "Train a candidate on all that has a label, and measure it", _update_time(api))
        try:
            run = _follow_update(api)
        except (KeyboardInterrupt, SystemExit):
            say("An update that was asked for goes on: run the same command again to follow it.")
            raise
        if run.candidate is None:
            raise CommandError(
                f"update {run.id} {run.state}: {run.error}. Mend that, and run the same command again"
            )
        release = api.release(run.candidate)
        tested = sorted(_test_digests(api, files))[:_MOST_SHOWN]
        chosen = {path: family for family, path in (files[digest] for digest in tested)}
        _step(
            4, "Changes for your own pictures outside its training data", _seconds(2 * len(chosen), _SCORE_S)
        )
        _show_changes(api, release, chosen, source)
        _step(5, "Findings and approval", "as long as you read")
        if _approve(api, release, asks=asks, yes=yes):
            say(f"Next: forgewatch send --source {quote(source)} FILE, and forgewatch verdicts --follow.")
            say("With 20 groups of reals to calibrate on, a source of this name has thresholds of its own.")


def _step(number: int, title: str, duration: str) -> None:
    say(f"\n{number} of 5. {title} ({duration})")


def _seconds(count: int, each_s: float) -> str:
    seconds = count * each_s
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} minutes"


def _looked_at(folder: Path) -> dict[str, tuple[str, Path]]:
    """Return the files of classes' folders by the SHA-256 of their bytes: each with its class and path.

    Says how many there are. Raises CommandError where no file lies in the folder of a class.
    """
    from deploy.client.importing import files_below
    from memory.annotations import place
    from memory.labels import LabelError

    files: dict[str, tuple[str, Path]] = {}
    for name, path in files_below(folder):
        with suppress(LabelError, OSError), path.open("rb") as file:  # the import says why
            files[file_digest(file, "sha256").hexdigest()] = place(name)[0], path
    if not files:
        raise CommandError(
            f"{folder} has no file in the folder of a class: put reals into {folder / REAL} and each family"
            " of forgeries into a folder of its name. Nothing is labelled that you did not place"
        )
    counts = Counter(family for family, _ in files.values())
    say(f"{folder} holds " + ", ".join(f"{count} {family}" for family, count in counts.most_common()))
    return files


def _update_time(api: Client) -> str:
    took = [
        (run.finished_at - run.started_at).total_seconds()
        for run in api.status().updates
        if run.candidate and run.started_at and run.finished_at
    ]
    return f"the last one took {took[0] / 60:.0f} minutes" if took else _USUAL_UPDATE


def _follow_update(api: Client) -> UpdateRun:
    """Follow the update that learns today's labels to its end; ask for it where there is none."""
    newest_label = max((entry.label for entry in api.labels()), default=0)
    latest = next(iter(api.status().updates), None)
    if latest is not None and latest.state in ("queued", "running"):
        say(f"update {latest.id} is {latest.state}: it is followed first")
        latest = follow_update(api, latest)
    if latest is not None and _still_counts(api, latest, newest_label):
        say(f"update {latest.id} has seen all labels: it is {latest.state}")
        return latest
    return follow_update(api, api.request_update())


def _still_counts(api: Client, run: UpdateRun, newest_label: int) -> bool:
    if run.state == "failed" or (run.labels_seen or 0) < newest_label:
        return False
    if run.candidate is None:
        return True
    release = api.release(run.candidate)
    if release.state == "rejected":
        raise CommandError(
            f"{release.actor} rejected release {short(release.digest)}: {release.reason}. Label more, and run"
            " the same command again"
        )
    return release.state not in ("expired", "rolled back")


def _test_digests(api: Client, digests: Mapping[str, tuple[str, Path]]) -> set[str]:
    """Return which of these were never learnt from nor calibrated on."""
    ordered = sorted(digests)
    parts = [ordered[start : start + _DIGESTS_AT_ONCE] for start in range(0, len(ordered), _DIGESTS_AT_ONCE)]
    return {digest for part in parts for digest in api.test_media(part)}


def _show_changes(api: Client, release: ReleaseDetail, chosen: Mapping[Path, str], source: str) -> None:
    """Print the calls of the live release and of the candidate on these pictures, by their classes."""
    if not chosen:
        return say("None of your pictures is held back: a fifth of the groups is, so import more.")
    before = (
        None if release.candidate.parent is None else _calls(api, release.candidate.parent, chosen, source)
    )
    after = _calls(api, release.digest, chosen, source)
    rows = []
    for family in sorted(set(chosen.values()), key=lambda name: (name != REAL, name)):
        mine = [path for path, name in chosen.items() if name == family and path in after]
        rows.append([family, len(mine), *(_cell(mine, label, before, after) for label in _LABELS)])
    print_table(
        f"called by {short(release.candidate.parent) or 'nothing'} → by {short(release.digest)}",
        ["your pictures", "held back", *_LABELS],
        rows,
    )
    forged = [path for path, family in chosen.items() if family != REAL and path in after]
    if passed := sum(after[path] == REAL for path in forged):
        say(
            f"{passed} of your {len(forged)} held-back forgeries would be called real. A family that waits is"
            " not learnt: label more of it (step 2 says how many) and run this again, or do not approve."
        )
    say(
        "The release's own figures are of all that is held back: forgewatch release "
        + str(short(release.digest))
    )


def _calls(api: Client, digest: str, chosen: Mapping[Path, str], source: str) -> dict[Path, str]:
    """Return a release's label of each picture of a source, without those that have no verdict."""
    from deploy.client.scoring import NoVerdictError, open_scorer

    labels: dict[Path, str] = {}
    with open_scorer(api, digest) as scorer, progress_bar(hidden=not sys.stderr.isatty()) as progress:
        for number, path in enumerate(chosen):
            progress(f"ask {short(digest)}", number, len(chosen))
            try:
                labels[path] = scorer.score(path, source=source).label
            except (NoVerdictError, OSError) as error:
                warn(f"left out: {error}")
    return labels


def _cell(
    paths: Sequence[Path], label: str, before: Mapping[Path, str] | None, after: Mapping[Path, str]
) -> str:
    now = sum(after[path] == label for path in paths)
    return str(now) if before is None else f"{sum(before.get(path) == label for path in paths)} → {now}"


def _approve(api: Client, release: ReleaseDetail, *, asks: bool, yes: bool) -> bool:
    """Take the release live if the person says so; one with findings only with a reason for each."""
    name, findings = short(release.digest), release.candidate.findings
    if release.state != "live":
        show_findings(findings)
        if findings and not asks:
            raise CommandError(
                f"release {name} has findings, which a person takes or mends: forgewatch approve {name} asks"
            )
        if not yes and not (asks and typer.confirm(f"Take {name} live{_with(len(findings))}?")):
            say(f"It waits: forgewatch approve {name} takes it live, forgewatch reject {name} does not.")
            return False
        release = api.approve(release, asked_reasons(findings), plan="now")
        if release.state != "live":
            say(f"{name} is approved; {still_lacks(release)}.")
            return False
    say(f"{name} is live, and detectors take it over within seconds: `forgewatch rollback` takes it back.")
    return True


def _with(count: int) -> str:
    return f" with {count} finding{'s' if count > 1 else ''} and your reasons" if count else ""
