"""`forgewatch expert`: add a network with a real/fake head of its own, list, remove, and train such."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deploy.cli.learning import device_of
from deploy.cli.output import (
    JsonFlag,
    UsageError,
    print_json,
    print_table,
    progress_bar,
    say,
    show_list,
    show_result,
    writable,
)
from deploy.cli.runs import one_line

if TYPE_CHECKING:
    from updater.experts.registry import ExpertRegistry, SourceWorth

app = typer.Typer(
    name="expert",
    help="Experts: networks with a real/fake head of their own, which updates carry into their releases.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help="a letter, then letters, digits or _")]


@app.command()
def add(
    name: Name,
    checkpoint: Annotated[Path, typer.Option(help="safetensors, or an ONNX file that keeps the contract")],
    head: Annotated[
        Path, typer.Option(help="safetensors of a linear head, or `inside` the checkpoint")
    ] = Path("inside"),
    architecture: Annotated[str | None, typer.Option(help="the timm model that the checkpoint is of")] = None,
    view: Annotated[
        str, typer.Option("--input", help="crop: native crops; resize: the whole picture")
    ] = "crop",
    px: Annotated[int | None, typer.Option(min=16, max=1024, help="side that the network sees")] = None,
    mean: Annotated[str | None, typer.Option(help="R,G,B of 0..1 that it is shown as 0; else timm's")] = None,
    std: Annotated[str | None, typer.Option(help="R,G,B of 0..1 that it is shown as 1; else timm's")] = None,
    fake_logit: Annotated[
        int, typer.Option(min=0, max=1, help="the logit of fakes; of one: 0 if real > 0")
    ] = 1,
    licence: Annotated[str | None, typer.Option(help="of the weights; else as the checkpoint says")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="add it without a question")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check an expert on the memory's held-back items, say its worth and its cost, and register it."""
    from memory.settings import MemorySettings
    from updater.experts.adding import held_back, make, picture_plan_of
    from updater.experts.build import Layout
    from updater.experts.registry import RegisteredExpert, worth_of

    if view not in ("crop", "resize"):
        raise UsageError(f"--input {view}: choose of crop, resize")
    kind: Literal["crop", "resize"] = "crop" if view == "crop" else "resize"
    levels: Any = {"mean": _levels("mean", mean), "deviation": _levels("std", std)}
    recipe = Layout(checkpoint, head, architecture, px, fake_logit=1 if fake_logit else 0, **levels)
    registry, memory = _registry(), MemorySettings()
    with (
        one_line(),
        TemporaryDirectory() as folder,
        progress_bar(hidden=as_json or not sys.stderr.isatty()) as progress,
    ):
        registry.require_free(name)
        plan = picture_plan_of(memory, kind)
        items = held_back(memory, plan, progress)
        side = items.crops.shape[1] if plan is None else plan.width_px
        expert = make(name, recipe, kind, side, licence, Path(folder) / "expert.onnx")
        worth = worth_of(expert, items, None, lambda *at: progress("ask the expert", *at))
        row = RegisteredExpert(contract=expert.contract, worth=worth)
        if not as_json:
            _show(row.worth.everywhere, *row.worth.sources)
            say(
                f"it takes {worth.seconds:.3f} s of one core an image beside the detector's"
                f" {worth.detector_seconds:.3f} s: a core answers"
                f" {worth.detector_seconds / (worth.detector_seconds + worth.seconds):.0%} as many images"
            )
        if not yes:
            typer.confirm(f"add {name} ({expert.contract.checkpoint})?", abort=True, err=True)
        registry.add(row, expert.path)
    line = f"{name} is registered; the next update carries it: forgewatch update --follow"
    show_result(row, as_json, line)


@app.command("list")
def list_(as_json: JsonFlag = False) -> None:
    """List the experts that the next update carries into its release."""
    with one_line():
        rows = _registry().rows()
    columns: Any = {"name": "contract.name", "input": "contract.input", "px": "contract.side_px"}
    columns |= {"AUC_when_added": "worth.everywhere.auc", "95_%": lambda row: _interval(row.worth.everywhere)}
    columns |= {"s_an_image": "worth.seconds", "checkpoint": "contract.checkpoint"}
    show_list(rows, as_json, "experts", **columns, licence="contract.licence")


@app.command()
def remove(name: Name) -> None:
    """Forget an expert: the next release is without it, and the live one stays as it is."""
    with one_line():
        _registry().remove(name)
    say(f"{name} is no longer carried; the live release has it until an update replaces it")


@app.command()
def train(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="DIR/FAMILY/{0_real,1_fake}/FILE")],
    out: Annotated[Path, typer.Option(help="safetensors to write, which `expert add` takes")],
    architecture: Annotated[str, typer.Option(help="a timm model")] = "resnet18",
    checkpoint: Annotated[Path | None, typer.Option(help="weights to begin with; else at random")] = None,
    hold: Annotated[list[str] | None, typer.Option(help="family held back; may be repeated")] = None,
    steps: Annotated[int, typer.Option(min=1, help="of training, 32 crops each")] = 2000,
    px: Annotated[int, typer.Option(min=32, max=1024, help="side of a native crop")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="of crops, augmentation and random weights")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Train an expert on labelled folders at native crops; whole families are held back to stop by.

    Called again after an interruption, it goes on.
    """
    from updater.experts.train import ExpertRun, train_expert
    from updater.training.weights import read_weights

    writable(out)
    with one_line(), progress_bar(hidden=as_json or not sys.stderr.isatty()) as progress:
        training = ExpertRun(
            architecture, steps, side_px=px, seed=seed, hold=tuple(hold or ()), device=device_of(device)
        )
        begun = None if checkpoint is None else read_weights(checkpoint)
        done = train_expert(folder, out, training, begun, progress)
    if as_json:
        return print_json({"step": done.step, "held_back": done.aucs})
    print_table("held back, never trained on", ["family", "AUC"], sorted(done.aucs.items()))
    say(f"{out}: the network of step {done.step}; add it: forgewatch expert add NAME --checkpoint {out}")


def _registry() -> "ExpertRegistry":
    from updater.experts.registry import ExpertRegistry
    from updater.settings import UpdaterSettings

    return ExpertRegistry(UpdaterSettings().work_dir)


def _levels(option: str, text: str | None) -> tuple[float, ...] | None:
    """Return levels of 0..255 from R,G,B of 0..1. Raises UsageError."""
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    least = 0.0 if option == "mean" else 1e-3
    if len(values) != 3 or not all(least <= value <= 1 for value in values):
        raise UsageError(f"--{option} {text}: three numbers of 0..1 are wanted, as 0.485,0.456,0.406")
    return tuple(255 * value for value in values)


def _show(*rows: "SourceWorth") -> None:
    print_table(
        "held-back items, real or fake by the expert alone",
        ["source", "reals", "fakes", "AUC", "95 %"],
        ([row.source, row.reals, row.fakes, row.auc, _interval(row)] for row in rows),
    )


def _interval(row: "SourceWorth") -> str | None:
    return None if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"
