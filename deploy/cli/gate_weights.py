"""`forgewatch benchmark weights`: the gate's weights, learnt inside the training families, beside its own."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.benchmark import HOME, Data, Sequence, one_line, prepared
from deploy.cli.learning import TrainingOptions, with_options
from deploy.cli.output import print_table, progress_bar, writable

if TYPE_CHECKING:
    from updater.benchmark.continual.setup import Setup
    from updater.benchmark.continual.streams import Dataset
    from updater.benchmark.gate_weights import Compared, Learnt


@with_options
def weights(
    chosen: TrainingOptions,
    data: Data = None,
    sequence: Sequence = "easy",
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, counted on from the first")] = 1,
) -> None:
    """Learn the gate's weights inside the training families, of CDDB's layout or else the own stream."""
    from updater.benchmark.continual.streams import Dataset

    writable(chosen.report)
    source = Dataset("cddb", data, sequence) if data else Dataset("synthetic")
    with one_line(), prepared(chosen) as setup:
        learnt, compared = _measured(source, setup, range(chosen.seed, chosen.seed + seeds))
    names = list(learnt[0].weights)
    rows = ((one.family, one.seed, *(f"{one.weights[name]:g}" for name in names)) for one in learnt)
    print_table("weights learnt without a family", ("family", "seed", *names), rows)
    figures = (
        (name, f"{one.registry:.3f}", f"{one.learnt:.3f}", f"{one.low:+.3f} to {one.high:+.3f}")
        for name, one in compared.items()
    )
    print_table("what they tell of it, AUC", ("", "registry", "learnt", "gain, 95 %"), figures)
    if chosen.report:
        found = {
            "learnt": [asdict(one) for one in learnt],
            "compared": {name: asdict(one) for name, one in compared.items()},
        }
        chosen.report.write_text(json.dumps(found, indent=1) + "\n")


def _measured(source: "Dataset", setup: "Setup", seeds: range) -> "tuple[list[Learnt], dict[str, Compared]]":
    from updater.benchmark.continual.items import with_features
    from updater.benchmark.data.crops import CropReader
    from updater.benchmark.gate_weights import measure
    from updater.benchmark.synthetic.families import FAMILIES

    kinds = {name: family.kinds for name, family in FAMILIES.items()} if source.which == "synthetic" else {}
    with progress_bar(hidden=not sys.stderr.isatty()) as progress:
        with CropReader(source.plan, HOME / "crops", progress) as reader:
            stream = with_features(source.read(reader), setup, progress)
        return measure(stream, setup, seeds, kinds, HOME, progress)
