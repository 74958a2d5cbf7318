"""`forgewatch benchmark speed`: does the training of an update wait for data."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.cli.benchmark import prepared
from deploy.cli.learning import TrainingOptions, with_options
from deploy.cli.output import print_table, progress_bar, writable
from deploy.cli.runs import HOME, one_line

if TYPE_CHECKING:
    from updater.benchmark.continual.setup import Setup


@with_options
def speed(chosen: TrainingOptions) -> None:
    """Measure whether training waits for data, on the own stream's first task."""
    with one_line(), prepared(chosen) as setup:
        _speed(setup, chosen.seed, chosen.report)


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
