"""`forgewatch distort`: pictures and videos by the distortions of the benchmarks."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import CommandError, UsageError, progress_bar, say, warn, writable

if TYPE_CHECKING:
    import numpy as np

    from updater.distortions.distortion import Step

RANDOM = "random"


def distort(
    source: Annotated[Path, typer.Argument(metavar="IN", help="a picture, a video, or a folder of them")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="the file, or the folder, to write")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="NAME",
            help="CS, CC, BW, GNC, GB, JPEG, VC, or random of these (the default); one of our 36;"
            " or normal or enhanced: as many of that set as ForgeryNet's files carry",
        ),
    ] = None,
    level: Annotated[str | None, typer.Option(metavar="1..5|random", help="random is the default")] = None,
    mix: Annotated[
        int | None, typer.Option(min=2, max=4, help="so many different ones, in drawn order")
    ] = None,
    meta: Annotated[
        Path | None, typer.Option(help="the file to write each file's distortions to, a line a file")
    ] = None,
    from_meta: Annotated[
        Path | None, typer.Option(help="apply to each file the distortions on its line of this file")
    ] = None,
    via_xvid: Annotated[
        bool, typer.Option("--via-xvid", help="store videos as DeeperForensics did; their sound is lost")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of everything random")] = 0,
) -> None:
    """Distort pictures and videos: DeeperForensics' seven distortions at five levels, and 36 of our own.

    Each file has draws of its own, by the seed and by its path below IN.
    """
    from ingest.settings import IngestSettings
    from updater.distortions.clip import ClipError
    from updater.distortions.distortion import DistortionError
    from updater.distortions.files import distort_file, generator_of, meta_line, missing, read_meta, steps_for

    if from_meta and (kind, level, mix) != (None, None, None):
        raise UsageError("--from-meta names the distortions: give no --type, --level or --mix with it")
    draw = _drawing(RANDOM if kind is None else kind, RANDOM if level is None else level, mix)
    if from_meta and not from_meta.is_file():
        raise CommandError(f"--from-meta {from_meta} is no file: name one that --meta wrote")
    try:
        metas = read_meta(from_meta) if from_meta else {}
    except DistortionError as error:
        raise CommandError(str(error)) from error
    writable(meta)
    max_pixels, made, failed = IngestSettings().max_pixels, [], 0
    pairs = list(_pairs(source, target))
    with progress_bar(hidden=not sys.stderr.isatty()) as progress:
        for number, (file, out, name) in enumerate(pairs):
            progress("distort", number, len(pairs))
            rng = generator_of(seed, name)
            try:
                steps = steps_for(name, metas) if from_meta else draw(rng)
                line = meta_line(name, steps) if meta else ""
                distort_file(file, out, steps, rng, via_xvid=via_xvid, max_pixels=max_pixels)
            except (DistortionError, ClipError, OSError) as error:
                why = f"{file}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
                if file == source:
                    raise CommandError(why) from error
                warn(f"left out {why}")
                failed += 1
                continue
            made.append(line)
    if source.is_dir() and (gone := missing(metas, (name for _, _, name in pairs))):
        warn(f"{source} lacks {len(gone)} that {from_meta} names, such as {gone[0]}")
        failed += len(gone)
    if meta:
        meta.write_text("".join(f"{line}\n" for line in made), "utf-8")
    say(f"{len(made)} distorted, {failed} left out")
    if failed:
        raise CommandError(f"{failed} file{'s were' if failed > 1 else ' was'} not distorted")


def _drawing(kind: str, level: str, mix: int | None) -> "Callable[[np.random.Generator], tuple[Step, ...]]":
    """What draws a file's distortions, by the options. Raises UsageError where they name none."""
    from updater.distortions.deeperforensics import DEEPERFORENSICS
    from updater.distortions.distortion import LEVELS, DistortionError
    from updater.distortions.methods import AUGMENTATIONS, draw_steps, drawn_by_the_law_of_files, step

    if level != RANDOM and not level.isdecimal():
        raise UsageError(f"--level {level!r} is no level: they are {LEVELS[0]} to {LEVELS[-1]}, and {RANDOM}")
    given = None if level == RANDOM else int(level)
    names = AUGMENTATIONS.get(kind)
    if names and mix is None:
        if given is not None:
            raise UsageError(f"--type {kind} draws its levels: leave --level out, or give --mix")
        return lambda rng: drawn_by_the_law_of_files(rng, names)
    if mix and not names and kind != RANDOM:
        raise UsageError(f"--mix draws its types, so --type {kind} cannot be mixed")
    try:
        step("CS" if names or kind == RANDOM else kind, LEVELS[0] if given is None else given)
    except DistortionError as error:
        raise UsageError(str(error)) from error
    chosen = names or (tuple(DEEPERFORENSICS) if kind == RANDOM else (kind,))
    return lambda rng: draw_steps(rng, mix or 1, given, chosen)


def _pairs(source: Path, target: Path) -> Iterator[tuple[Path, Path, str]]:
    """Each file, what is made of it, and its name below IN.

    Raises CommandError where there is none, and where something would be written over.
    """
    if file := next((place for place in target.parents if place.is_file()), None):
        raise CommandError(f"{file} is a file, so {target} cannot lie in it: name another OUT")
    if source.is_file():
        if target.is_dir():
            raise CommandError(f"{target} is a folder: name a file")
        if target.exists():
            same = target.samefile(source)
            why = "itself the input" if same else "there already and is not written over"
            raise CommandError(f"{target} is {why}: name another file")
        yield source, target, source.name
        return
    if not source.is_dir():
        raise CommandError(f"there is no {source}: name a picture, a video, or a folder of them")
    if target.exists() and not target.is_dir():
        raise CommandError(f"{target} is a file: name a folder")
    if target.resolve().is_relative_to(source.resolve()):
        raise CommandError(f"{target} lies in {source}, which is to be distorted: name another folder")
    if source.resolve().is_relative_to(target.resolve()):
        raise CommandError(f"{source} lies in {target}, where it could be overwritten: name another folder")
    if target.is_dir() and any(target.iterdir()):
        raise CommandError(f"{target} holds files already, which are not written over: name another folder")
    seen = False
    for file in sorted(source.rglob("*")):
        below = file.relative_to(source)
        if file.is_file() and not any(part.startswith(".") for part in below.parts):
            seen = True
            yield file, target / below, below.as_posix()
    if not seen:
        raise CommandError(f"{source} holds no files")
