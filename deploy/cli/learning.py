"""What the benchmarks are told of a network and its training: the options, and the Setup made of them."""

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_type_hints

import typer

from deploy.cli.output import UsageError, say

if TYPE_CHECKING:
    from updater.benchmark.continual.setup import Setup
    from updater.training.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of every benchmark: the network, and how it is trained."""

    scheme: Annotated[str, typer.Option(help="bc, mc or mt: binary, multi-class, multi-task")] = "mc"
    aggregate: Annotated[str, typer.Option(help="of mt: how two scores are made of the logits")] = "sumlogit"
    mt_weight: Annotated[float, typer.Option(min=0, max=1, help="of mt: lambda")] = 0.3
    head: Annotated[str, typer.Option(help="linear or cosine (LinFC, CosFC)")] = "linear"
    distillation: Annotated[float, typer.Option(min=0, help="weight of its loss; 0 for none")] = 1.0
    distilled: Annotated[str, typer.Option(help="what it is taken over: all items, or exemplars")] = "all"
    balanced: Annotated[bool, typer.Option(help="fine-tune the head on balanced batches")] = True
    backbone: Annotated[
        str | None, typer.Option(help='a timm model, or "none" for forensic features alone; else the default')
    ] = None
    forensic: Annotated[
        bool, typer.Option(help="residual front end and forensic branch beside the backbone; else plain RGB")
    ] = True
    crop_px: Annotated[int, typer.Option(min=32, max=1024, help="side of a crop, native pixels")] = 128
    epochs: Annotated[
        float | None, typer.Option(help="times that an item is drawn to train the network; else the default")
    ] = None
    rate: Annotated[
        str | None, typer.Option(help="highest learning rate of that training; or FIRST,LATER of the tasks")
    ] = None
    head_epochs: Annotated[
        float | None,
        typer.Option(help="and to train what lies above the backbone after that: 0 for no second stage"),
    ] = None
    width: Annotated[int, typer.Option(min=1, max=65536, help="of each part of the embedding")] = 64
    batch: Annotated[int, typer.Option(min=1, max=65536, help="items of a training step")] = 64
    augment: Annotated[
        str,
        typer.Option(help="of crops while the backbone is trained: none, flip (left to right), flip-shift"),
    ] = "none"
    optimizer: Annotated[str, typer.Option(help="adamw or sgd")] = "adamw"
    schedule: Annotated[
        str, typer.Option(help="how the rate goes on: one-cycle, cosine, or tenths (it falls three times)")
    ] = "one-cycle"
    weight_decay: Annotated[float, typer.Option(min=0, help="of every stage's optimizer")] = 0.02
    checkpoint: Annotated[
        Path | None, typer.Option(help="begin with own weights: safetensors of the backbone or of a network")
    ] = None
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="begin with timm's weights, which are downloaded")
    ] = False
    exposure: Annotated[str, typer.Option(help="pseudo-forgeries: none, class or outliers")] = "class"
    seed: Annotated[int, typer.Option(min=0, help="the first seed")] = 0
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto"
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None


@dataclass(frozen=True, kw_only=True)
class Learning(TrainingOptions):
    """Options of the benchmarks that learn a stream of tasks."""

    preset: Annotated[
        str | None, typer.Option(help="published options under one name, such as cddb-lucir")
    ] = None
    picture_backbone: Annotated[
        str | None, typer.Option(help="a timm model that looks at whole pictures, and votes")
    ] = None
    picture_checkpoint: Annotated[
        Path | None, typer.Option(help="its weights, safetensors; else timm's, which are downloaded")
    ] = None
    picture_px: Annotated[
        int, typer.Option(min=16, max=1024, help="side of the square that pictures are resized to")
    ] = 224
    learner: Annotated[str, typer.Option(help="how a task is learnt after another")] = "softmax-rehearsal"
    memory: Annotated[int, typer.Option(min=0, help="exemplars of earlier tasks, all together")] = 500
    rejection: Annotated[
        str, typer.Option(help="scores of rejection, NAME,NAME,…; the figures are of the first")
    ] = "fused"
    calibration_share: Annotated[
        float | None,
        typer.Option(
            help="of each class's training items, held back to set thresholds by; else the layout's"
        ),
    ] = None
    leave_out: Annotated[
        bool, typer.Option(help="measure rejection by leaving out each family once, which takes longest")
    ] = True
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, counted on from the first")] = 1
    out: Annotated[Path | None, typer.Option(help="folder of the runs; what it holds is not redone")] = None
    compare: Annotated[
        list[Path] | None, typer.Option(help="folder of other runs to put beside these; may be repeated")
    ] = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of its parameter `chosen`, a class of those above, as its options."""
    signature = inspect.signature(command, eval_str=True)
    kind = signature.parameters["chosen"].annotation
    hints = get_type_hints(kind, include_extras=True)
    own = [one for name, one in signature.parameters.items() if name != "chosen"]
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + options

    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def run(context: typer.Context, **values: Any) -> None:
        chosen = kind(**{option.name: values.pop(option.name) for option in options})
        command(**values, chosen=_with_preset(chosen, context))

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _with_preset(chosen: TrainingOptions, context: typer.Context) -> TrainingOptions:
    """The options of a preset, where one is named, under those that were given. Raises UsageError."""
    if not isinstance(chosen, Learning) or chosen.preset is None:
        return chosen
    from updater.benchmark.continual.presets import PRESETS

    _one_of("preset", chosen.preset, PRESETS)
    preset = PRESETS[chosen.preset]
    left: dict[str, Any] = {
        name: value for name, value in preset.options.items() if not _given(context, name)
    }
    say(f"{chosen.preset} is {preset.source}. What still differs: {'; '.join(preset.differs)}.")
    return replace(chosen, **left)


def _given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def setup_of(chosen: TrainingOptions) -> "Setup":
    """The Setup of these options, on `chosen.device` and without weights. Raises UsageError."""
    from pydantic import TypeAdapter, ValidationError

    from detector.model.backbone import BackboneError, architecture_of
    from detector.model.network import Network
    from detector.release.architecture import Architecture
    from updater.benchmark.continual.scoring import scores_offered
    from updater.benchmark.continual.setup import Setup
    from updater.benchmark.learners.methods import LEARNERS
    from updater.training.step import Options

    learning = chosen if isinstance(chosen, Learning) else Learning()
    _one_of("learner", learning.learner, LEARNERS)
    names = tuple(name.strip() for name in learning.rejection.split(","))
    for name in names:
        _one_of("rejection", name, scores_offered())
    named = ("scheme", "aggregate", "mt_weight", "distillation", "distilled", "balanced", "exposure")
    options = {name: getattr(chosen, name) for name in named}
    try:
        of_training = TypeAdapter(Options).validate_python(options)
        shape = {name: getattr(chosen, name) for name in ("head", "crop_px", "forensic", "width")}
        architecture = architecture_of(chosen.backbone or Architecture().backbone, **shape)
        Network(architecture, 2)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise UsageError(f"--no-forensic: {first['ctx']['error']}: name a --backbone") from error
        option = str(first["loc"][0])
        raise UsageError(f"--{option.replace('_', '-')} {first['input']}: {first['msg']}") from error
    except BackboneError as error:
        raise UsageError(f"--backbone {error}") from error
    except ValueError as error:
        raise UsageError(f"--crop-px {chosen.crop_px}: {error}") from error
    setup = Setup(learning.learner, of_training, architecture, learning.memory, rejection=names)
    return _trained(setup, chosen)


def _trained(setup: "Setup", chosen: TrainingOptions) -> "Setup":
    """The setup with what is said of how long and how fast to train. Raises UsageError."""
    from updater.training.schedules import SCHEDULES, Augment
    from updater.training.step import Optimizer

    _one_of("augment", chosen.augment, get_args(Augment))
    _one_of("optimizer", chosen.optimizer, get_args(Optimizer))
    _one_of("schedule", chosen.schedule, SCHEDULES)
    if chosen.augment != "none" and setup.bare:
        raise UsageError(
            f"--augment {chosen.augment} is of a backbone's training, and there is none: name one"
        )
    if (epochs := chosen.epochs) is not None:
        if not (math.isfinite(epochs) and epochs > 0):
            raise UsageError(f"--epochs {epochs:g}: it has to be above 0")
        setup = setup.trained_epochs(epochs)
    if (epochs := chosen.head_epochs) is not None:
        if setup.bare:
            raise UsageError("--head-epochs are of a second stage, and without a backbone there is none")
        if not (math.isfinite(epochs) and epochs >= 0):
            raise UsageError(f"--head-epochs {epochs:g}: it has to be 0 or above")
        setup = replace(setup, head_epochs=epochs, least_steps=0)
    augment = cast("Augment", chosen.augment)
    return replace(
        setup,
        rates=_rates(chosen.rate),
        batch=chosen.batch,
        augment=augment,
        optimizer=cast("Optimizer", chosen.optimizer),
        schedule=cast("Schedule", chosen.schedule),
        weight_decay=chosen.weight_decay,
    )


def _rates(said: str | None) -> tuple[float, float] | None:
    """The learning rates of the first task and of later ones, from RATE or FIRST,LATER. Raises UsageError."""
    if said is None:
        return None
    try:
        rates = [float(part) for part in said.split(",")]
    except ValueError:
        rates = []
    if len(rates) not in (1, 2) or not all(math.isfinite(one) and one > 0 for one in rates):
        raise UsageError(f"--rate {said}: it has to be a number above 0, or two as FIRST,LATER")
    return rates[0], rates[-1]


def share_of(chosen: Learning) -> float | None:
    """The share that is held back for calibration, None for the layout's own. Raises UsageError."""
    share = chosen.calibration_share
    if share is not None and not 0 <= share < 1:
        raise UsageError(f"--calibration-share {share:g}: it has to be 0 or above, and below 1")
    if share == 0 and chosen.leave_out:
        raise UsageError("--calibration-share 0 leaves nothing to set thresholds by: add --no-leave-out")
    return share


def _one_of(option: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(f"--{option} {name!r} is not known: choose of {', '.join(known)}")
