"""`forgewatch benchmark cddb|opencil|synthetic`: what is learnt, forgotten and rejected, measured."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.cli_output import CommandError, say

if TYPE_CHECKING:
    from ingest.records import CropPlan
    from updater.benchmark.setup import Setup
    from updater.data.crops import CropReader
    from updater.data.tasks import Stream

HOME = Path(".forgewatch/benchmarks")

_FEW_SHOTS_STRIDE_PX = 64

Which = Literal["cddb", "opencil", "synthetic"]


def benchmark(
    which: Annotated[Which, typer.Argument(help="whose layout, or the own stream, which needs no data")],
    data: Annotated[Path | None, typer.Option(help="the folder of the data")] = None,
    sequence: Annotated[
        str, typer.Option(help="of CDDB: easy, hard, long, or NAME,NAME,… of its folders")
    ] = "easy",
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
    exposure: Annotated[str, typer.Option(help="pseudo-forgeries: none, class or outliers")] = "class",
    training: Annotated[str, typer.Option(help="rejection that is trained for, such as logit-norm")] = "none",
    rejection: Annotated[
        str, typer.Option(help="post-hoc scores, NAME,NAME,…; the figures are of the first")
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
    options = {
        "scheme": scheme,
        "aggregate": aggregate,
        "mt_weight": mt_weight,
        "distillation": distillation,
        "balanced": balanced,
        "exposure": exposure,
        "rejection": training,
    }
    setup = _setup(learner, options, memory, backbone, head, rejection, device)
    folder = out or HOME / "-".join([which, learner, scheme, str(memory), setup.architecture.backbone])
    _run(which, data, sequence, setup, leave_out, range(seed, seed + seeds), folder, compare or [], report)


def _setup(
    learner: str,
    options: dict[str, object],
    memory: int,
    backbone: str | None,
    head: str,
    rejection: str,
    device: str,
) -> "Setup":
    import torch
    from pydantic import TypeAdapter, ValidationError

    from detector.architecture import Architecture
    from updater.benchmark.setup import Setup
    from updater.learners.methods import LEARNERS
    from updater.learners.step import Options
    from updater.rejection.methods import POST_HOC

    _one_of("learner", learner, LEARNERS)
    names = tuple(rejection.split(","))
    for name in names:
        _one_of("rejection", name, POST_HOC)
    try:
        chosen = TypeAdapter(Options).validate_python(options)
        architecture = Architecture.model_validate(
            {"head": head} | ({} if backbone is None else {"backbone": backbone})
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise CommandError(f"--{first['loc'][0]}: {first['msg']}".replace("_", "-")) from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Setup(learner, chosen, architecture, memory, rejection=names, device=device)


def _one_of(option: str, name: str, known: object) -> None:
    assert isinstance(known, dict)
    if name not in known:
        raise CommandError(f"--{option} {name} is not known: choose of {', '.join(known)}")


def _run(
    which: Which,
    data: Path | None,
    sequence: str,
    setup: "Setup",
    leave_out: bool,
    seeds: range,
    folder: Path,
    others: list[Path],
    report: Path | None,
) -> None:
    from updater.benchmark.report import compare, show, write_reports
    from updater.benchmark.run import run_benchmark
    from updater.data.crops import CropReader
    from updater.data.tasks import DataError
    from updater.synthetic.families import FAMILIES

    kinds = {name: family.kinds for name, family in FAMILIES.items()} if which == "synthetic" else {}
    runs, scores = [], []
    with _bar() as progress:
        try:
            with CropReader(_plan(which), HOME / "crops", progress) as reader:
                stream = _stream(which, data, sequence, reader)
            for run, found in run_benchmark(
                which,
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
        except (DataError, ValueError) as error:
            raise CommandError(str(error)) from error
    write_reports(folder, runs, scores, report)
    show(Console(), runs)
    if others:
        Console().print(compare([folder, *others]).terminal())
    say(f"the page of it: {folder / 'report.html'}")


def _stream(which: Which, data: Path | None, sequence: str, reader: "CropReader") -> "Stream":
    from updater.data.cddb import load_cddb
    from updater.data.folders import load_folders
    from updater.data.synthetic import load_synthetic

    if which == "synthetic":
        return load_synthetic(reader)
    if data is None or not data.is_dir():
        raise CommandError(f"--data must name the folder of the data, not {data}")
    if which == "cddb":
        return load_cddb(data, sequence, reader)
    return load_folders(data, reader)


def _plan(which: Which) -> "CropPlan":
    """Return how media is cut: the own stream's as a release cuts it; others' few shots with overlap."""
    from ingest.records import CropPlan

    return CropPlan() if which == "synthetic" else CropPlan(stride_px=_FEW_SHOTS_STRIDE_PX)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as bars:
        bar = bars.add_task("start", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bars.update(bar, description=stage, completed=done, total=total or None)

        yield show
