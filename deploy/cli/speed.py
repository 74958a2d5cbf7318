"""`forgewatch benchmark speed`: does the training of an update, or of ForgeryNet's tasks, wait for data."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.benchmark import HOME, one_line, prepared
from deploy.cli.devices import device_of
from deploy.cli.learning import TrainingOptions, with_options
from deploy.cli.output import UsageError, print_table, progress_bar, writable

if TYPE_CHECKING:
    from updater.benchmark.continual.setup import Setup

_OF_TASKS = frozenset({"task", "model", "seed", "device", "report"})


@with_options
def speed(
    chosen: TrainingOptions,
    given: frozenset[str],
    task: Annotated[
        str | None, typer.Option(help="one of ForgeryNet's instead: image, video or spatial")
    ] = None,
    model: Annotated[str | None, typer.Option(help="its network; else the task's default")] = None,
) -> None:
    """Measure whether training waits for data, on the own stream's first task, or on its ForgeryNet tree."""
    if task is not None:
        if others := sorted(given - _OF_TASKS):
            names = ", ".join(f"--{name.replace('_', '-')}" for name in others)
            raise UsageError(f"{names}: a --task has its own recipe, so leave this out")
        with one_line():
            _speed_of_task(task, model, chosen)
        return
    if model is not None:
        raise UsageError("--model is of a --task: name one, or say --backbone")
    with one_line(), prepared(chosen) as setup:
        _speed(setup, chosen.seed, chosen.report)


def _speed_of_task(name: str, model: str | None, chosen: TrainingOptions) -> None:
    from updater.benchmark.forgerynet.choices import Choices
    from updater.benchmark.forgerynet.run import job_of, read
    from updater.benchmark.forgerynet.speed import measure
    from updater.benchmark.forgerynet.tasks import TASKS
    from updater.benchmark.speed import speed_json

    timed = {known: task for known, task in TASKS.items() if task.trained is not None}
    if name not in timed or timed[name].trained is None:
        raise UsageError(f"--task {name} loads no media in training: choose of {', '.join(timed)}")
    task = timed[name]
    device = device_of(chosen.device)
    for file in (HOME / "report.json", chosen.report):
        writable(file)
    choices = Choices.usual(name, model or task.small_model, synthetic=True)
    with progress_bar(hidden=not sys.stderr.isatty()) as progress:
        data = read(task.medium, None, HOME, progress)
        job = job_of(choices, data, chosen.seed, HOME, HOME / "sights", device, None, progress)
        assert task.trained is not None
        found = measure(name, task.trained(job), seed=chosen.seed, device=device, progress=progress)
    columns = ("task", "training, images/s", "same steps on a fixed batch", "share")
    row = (found.stage, f"{found.loop:.1f}", f"{found.fixed:.1f}", f"{found.share:.2f}")
    print_table(f"training of {choices.model} on {device.type}", columns, [row])
    if chosen.report:
        chosen.report.write_text(speed_json([found], device.type, choices.described()))


def _speed(setup: "Setup", seed: int, report: Path | None) -> None:
    from updater.benchmark.continual.streams import Dataset
    from updater.benchmark.data.crops import CropReader
    from updater.benchmark.speed import measure_on_own_stream, speed_json
    from updater.training.processes import is_first

    for file in (HOME / "report.json", report):
        writable(file)
    plan = Dataset("synthetic", crop_px=setup.architecture.crop_px).plan
    with (
        progress_bar(hidden=not is_first() or not sys.stderr.isatty()) as progress,
        CropReader(plan, HOME / "crops", progress) as reader,
    ):
        found = measure_on_own_stream(reader, setup, seed, progress)
    if not is_first():
        return
    columns = ("stage", "training, images/s", "same steps on a fixed batch", "share")
    rows = ((one.stage, f"{one.loop:.0f}", f"{one.fixed:.0f}", f"{one.share:.2f}") for one in found)
    print_table(f"training of {setup.architecture.backbone} on {setup.device}", columns, rows)
    if report:
        report.write_text(speed_json(found, setup.device, setup.described()))
