"""`forgewatch benchmark cddb|opencil|synthetic|speed`: learning, forgetting, rejection, speed, measured."""

import logging
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.cli.output import CommandError, print_table, say

if TYPE_CHECKING:
    import torch

    from detector.architecture import Architecture
    from updater.benchmark.setup import Setup
    from updater.benchmark.streams import Source
    from updater.training.weights import Weights

HOME = Path(".forgewatch/benchmarks")


def benchmark(
    which: Annotated[
        Literal["cddb", "opencil", "synthetic", "speed"],
        typer.Argument(
            help="whose layout, or the own stream, which needs no data; speed: does training wait for data"
        ),
    ],
    data: Annotated[Path | None, typer.Option(help="the folder of the data")] = None,
    sequence: Annotated[
        str, typer.Option(help="of CDDB's layout: easy, hard, long, or NAME,NAME,… of its folders")
    ] = "easy",
    base: Annotated[int, typer.Option(min=1, help="of OpenCIL's layout: classes of the first step")] = 10,
    increment: Annotated[int, typer.Option(min=1, help="and of each step that follows")] = 10,
    learner: Annotated[str, typer.Option(help="how a task is learnt after another")] = "softmax-rehearsal",
    scheme: Annotated[str, typer.Option(help="bc, mc or mt: binary, multi-class, multi-task")] = "mc",
    aggregate: Annotated[str, typer.Option(help="of mt: how two scores are made of the logits")] = "sumlogit",
    mt_weight: Annotated[float, typer.Option(min=0, max=1, help="of mt: lambda")] = 0.5,
    head: Annotated[str, typer.Option(help="linear or cosine (LinFC, CosFC)")] = "linear",
    distillation: Annotated[float, typer.Option(min=0, help="weight of its loss; 0 for none")] = 1.0,
    balanced: Annotated[bool, typer.Option(help="fine-tune the head on balanced batches")] = True,
    memory: Annotated[int, typer.Option(min=0, help="exemplars of earlier tasks, all together")] = 500,
    backbone: Annotated[
        str | None, typer.Option(help='a timm model, or "none" for forensic features alone; else the default')
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="begin with own weights: safetensors of the backbone or of a network")
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="begin with timm's weights, which are downloaded")
    ] = False,
    exposure: Annotated[str, typer.Option(help="pseudo-forgeries: none, class or outliers")] = "class",
    training: Annotated[str, typer.Option(help="rejection that is trained for, such as logit-norm")] = "none",
    rejection: Annotated[
        str, typer.Option(help="scores of rejection, NAME,NAME,…; the figures are of the first")
    ] = "fused",
    leave_out: Annotated[
        bool, typer.Option(help="measure rejection by leaving out each family once, which takes longest")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="the first seed")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, counted on from the first")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto",
    out: Annotated[Path | None, typer.Option(help="folder of the runs; what it holds is not redone")] = None,
    compare: Annotated[
        list[Path] | None, typer.Option(help="folder of other runs to put beside these; may be repeated")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
) -> None:
    """Measure learning, forgetting and the rejection of what was never trained on, over a stream of tasks."""
    with _one_line():
        from updater.benchmark.streams import Source
        from updater.training.processes import joined

        options = {
            "scheme": scheme,
            "aggregate": aggregate,
            "mt_weight": mt_weight,
            "distillation": distillation,
            "balanced": balanced,
            "exposure": exposure,
            "rejection": training,
        }
        with joined(_device(device)) as own:
            setup = _setup(learner, options, memory, backbone, head, rejection)
            weights = _weights(setup.architecture, checkpoint, pretrained)
            setup = replace(setup, device=str(own), start_from=weights)
            if which == "speed":
                _speed(setup, seed, report)
            else:
                source = Source(which, data, sequence, base, increment)
                _run(source, setup, leave_out, range(seed, seed + seeds), out, compare or [], report)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn whatever can be wrong with data, options, folders and weights into one line for the person."""
    import torch

    from ingest.sandbox import SandboxUnavailableError
    from updater.benchmark.data.tasks import DataError
    from updater.benchmark.run_folder import ResultsError

    try:
        yield
    except (DataError, ResultsError, SandboxUnavailableError, ValueError, torch.OutOfMemoryError) as error:
        raise CommandError(str(error)) from error


def _setup(
    learner: str, options: dict[str, object], memory: int, backbone: str | None, head: str, rejection: str
) -> "Setup":
    from pydantic import TypeAdapter, ValidationError

    from detector.architecture import Architecture
    from updater.benchmark.scoring import scores_offered
    from updater.benchmark.setup import Setup
    from updater.learners.methods import LEARNERS
    from updater.rejection.heads.methods import HEADS
    from updater.training.step import Options

    _one_of("learner", learner, LEARNERS)
    names = tuple(name.strip() for name in rejection.split(","))
    for name in names:
        _one_of("rejection", name, scores_offered())
    if options["rejection"] in HEADS:
        raise CommandError(f"{options['rejection']} trains a head of its own: name it with --rejection")
    try:
        chosen = TypeAdapter(Options).validate_python(options)
        architecture = Architecture.model_validate(
            {"head": head} | ({} if backbone is None else {"backbone": backbone})
        )
    except ValidationError as error:
        first = error.errors()[0]
        option = {"rejection": "training"}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise CommandError(f"--{option.replace('_', '-')} {first['input']}: {first['msg']}") from error
    _check_backbone(architecture)
    return Setup(learner, chosen, architecture, memory, rejection=names)


def _one_of(option: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise CommandError(f"--{option} {name!r} is not known: choose of {', '.join(known)}")


def _check_backbone(architecture: "Architecture") -> None:
    """Raise CommandError for a backbone that cannot be made, before any data is read."""
    import timm

    from detector.architecture import NO_BACKBONE
    from detector.network import Network

    name = architecture.backbone
    # Names that lead to a hub are no names of models: they would be looked up there.
    if name != NO_BACKBONE and not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), 3)
        raise CommandError(
            f"--backbone {name} is no model that timm knows: {' or '.join(near) or 'see its list'}, or none"
        )
    try:
        Network(architecture, 2)
    # Each of timm's thousand models has its own way to say that it cannot be made of this size.
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise CommandError(
            f"--backbone {name} cannot be made for crops of {architecture.crop_px} px ({why})"
        ) from error


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise CommandError(f"--device {name} is none: choose of cpu, cuda, auto") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise CommandError(f"--device {name}: there are {torch.cuda.device_count()} GPUs that torch can use")
    return found


def _weights(architecture: "Architecture", checkpoint: Path | None, pretrained: bool) -> "Weights | None":
    from updater.training.weights import read_weights, timm_weights

    if checkpoint and pretrained:
        raise CommandError("--checkpoint and --pretrained are two ways to begin: choose one")
    if checkpoint:
        return read_weights(checkpoint)
    # It tells of each try to reach the hub; what came of them is told once.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    return timm_weights(architecture) if pretrained else None


def _run(
    source: "Source",
    setup: "Setup",
    leave_out: bool,
    seeds: range,
    out: Path | None,
    others: list[Path],
    report: Path | None,
) -> None:
    from updater.benchmark.data.crops import CropReader
    from updater.benchmark.report import compare, show, write_reports
    from updater.benchmark.run import default_name, run_benchmark
    from updater.benchmark.run_folder import load_runs
    from updater.benchmark.synthetic.families import FAMILIES
    from updater.training.processes import is_first

    # What cannot be read or written is told of before hours of training.
    for other in others:
        load_runs(other)
    for folder in (out or HOME, report.parent if report else HOME):
        _writable(folder)
    kinds = {name: family.kinds for name, family in FAMILIES.items()} if source.which == "synthetic" else {}
    runs, scores = [], []
    # Where nobody looks on, a bar would only leave an empty line.
    with _bar(hidden=not is_first() or not sys.stderr.isatty()) as progress:
        with CropReader(source.plan, HOME / "crops", progress) as reader:
            stream = source.read(reader)
        folder = out or HOME / default_name(source.which, stream, setup)
        for run, found in run_benchmark(
            source.which,
            stream,
            setup,
            seeds,
            folder,
            command=("forgewatch", *sys.argv[1:]),
            kinds=kinds,
            leave_families_out=leave_out and not stream.outliers,
            progress=progress,
        ):
            runs.append(run)
            scores.append(found)
    if not is_first():
        return
    write_reports(folder, runs, scores, report)
    show(Console(), runs)
    if others:
        compare([folder, *others]).show(Console())
    say(f"the page of it: {folder / 'report.html'}")


def _speed(setup: "Setup", seed: int, report: Path | None) -> None:
    from updater.benchmark.data.crops import CropReader
    from updater.benchmark.speed import measure_on_own_stream, speed_json
    from updater.training.processes import is_first

    for folder in (HOME, report.parent if report else HOME):
        _writable(folder)
    with (
        _bar(hidden=not is_first() or not sys.stderr.isatty()) as progress,
        CropReader(cache=HOME / "crops", progress=progress) as reader,
    ):
        found = measure_on_own_stream(reader, setup, seed, progress)
    if not is_first():
        return
    columns = ("stage", "training, images/s", "same steps on a fixed batch", "share")
    rows = ((one.stage, f"{one.loop:.0f}", f"{one.fixed:.0f}", f"{one.share:.2f}") for one in found)
    print_table(f"training of {setup.architecture.backbone} on {setup.device}", columns, rows)
    if report:
        report.write_text(speed_json(found, setup))


def _writable(folder: Path) -> None:
    """Make the folder; raises OSError where nothing can be written into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass


@contextmanager
def _bar(*, hidden: bool) -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=hidden, console=Console(stderr=True)) as bars:
        bar = bars.add_task("start", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bars.update(bar, description=stage, completed=done, total=total or None)

        yield show
