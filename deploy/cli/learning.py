"""Options of the stream benchmarks, and the Setup made of them."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from deploy.cli.output import UsageError, say

if TYPE_CHECKING:
    import torch

    from updater.benchmark.continual.setup import Setup
    from updater.training.step import Augment, Optimizer, Schedule

_METHOD, _NETWORK, _RUN = "Methods", "The network and its training", "The run"


def _option(panel: str, text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Options of a stream benchmark. A field that is no option belongs to presets."""

    preset: Annotated[
        str | None,
        _option(_METHOD, "a published run, such as cddb-lucir; lists differences; options beside it count"),
    ] = None
    learner: Annotated[str, _option(_METHOD, "how a task is learnt after another")] = "softmax-rehearsal"
    memory: Annotated[int, _option(_METHOD, "exemplars of earlier tasks, all together", min=0)] = 500
    scheme: Annotated[
        str, _option(_METHOD, "bc: real or fake; mc: a class a family; mt:sumlogit[:LAMBDA] and its like")
    ] = "mc"
    head: Annotated[str, _option(_METHOD, "linear or cosine")] = "linear"
    distillation: Annotated[float, _option(_METHOD, "weight of its loss; 0 for none", min=0)] = 1.0
    distilled: Annotated[str, _option(_METHOD, "its items: all, or exemplars")] = "all"
    exposure: Annotated[str, _option(_METHOD, "pseudo-forgeries: none, class or outliers")] = "class"
    rejection: Annotated[
        str, _option(_METHOD, "scores of rejection, NAME,NAME,…; the figures are of the first")
    ] = "fused"
    leave_out: Annotated[
        bool, _option(_METHOD, "measure rejection by leaving out each family once, which takes longest")
    ] = True

    backbone: Annotated[
        str | None, _option(_NETWORK, "a timm model; without one, the forensic features alone")
    ] = None
    forensic: Annotated[
        bool, _option(_NETWORK, "forensic features and residuals beside the backbone; else plain RGB")
    ] = True
    crop_px: Annotated[int, _option(_NETWORK, "side of a crop, in native pixels", min=32, max=1024)] = 128
    crops: Annotated[int, _option(_NETWORK, "most crops of a picture", min=1, max=64)] = 9
    epochs: Annotated[
        float | None, _option(_NETWORK, "times that an item is drawn to train the network; else the default")
    ] = None
    rate: Annotated[
        str | None, _option(_NETWORK, "highest learning rate of that training; or FIRST,LATER of the tasks")
    ] = None
    settings: Annotated[
        list[str] | None, _option(_NETWORK, "optimizer=adam, mixup=0.2, …; may be repeated", "--set")
    ] = None
    checkpoint: Annotated[
        Path | None,
        _option(_NETWORK, "safetensors of a backbone or a network to begin with; timm: its own, downloaded"),
    ] = None
    expert: Annotated[list[str] | None, _option(_NETWORK, "an expert, or FILE; may be repeated")] = None

    device: Annotated[str, _option(_RUN, "cpu, cuda or auto")] = "auto"
    seed: Annotated[int, _option(_RUN, "the first seed", min=0)] = 0
    seeds: Annotated[int, _option(_RUN, "how many seeds, counted on from the first", min=1)] = 1
    out: Annotated[Path | None, _option(_RUN, "folder of the runs; finished runs in it are kept")] = None
    compare: Annotated[
        list[Path] | None, _option(_RUN, "folder of other runs to put beside these; may be repeated")
    ] = None
    report: Annotated[Path | None, _option(_RUN, "write the figures there as JSON")] = None

    width: int = 64
    """of each part of the embedding"""
    batch: int = 64
    augment: str = "none"
    optimizer: str = "adamw"
    schedule: str = "one-cycle"
    weight_decay: float = 0.02
    label_smoothing: float = 0.05
    mixup: float = 0.0
    distortions: str = ""
    """TYPE:LEVEL,… that the last network is measured under"""
    head_epochs: float | None = None
    """as `epochs`, to train what lies above the backbone after that; 0 for no second stage"""
    calibration_share: float | None = None
    """of each class's training items, held back to set thresholds by; None: the layout's own"""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the class of its parameter `chosen`, such as `Learning`."""
    signature = inspect.signature(command, eval_str=True)
    options_of = signature.parameters["chosen"].annotation
    hints = get_type_hints(options_of, include_extras=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "chosen"]
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(options_of)
        if hasattr(hints[field.name], "__metadata__")
    ]
    parameters = [parameter.replace(kind=kind) for parameter in own] + options
    parameters.append(inspect.Parameter("context", kind, annotation=typer.Context))

    @wraps(command)
    def run(context: typer.Context, **values: Any) -> None:
        chosen = options_of(**{option.name: values.pop(option.name) for option in options})
        if isinstance(chosen, Learning):
            from updater.benchmark.continual.presets import PRESETS, check, differences

            try:
                chosen = _with_preset(chosen, context)
                check(vars(chosen))
            except ValueError as error:
                raise UsageError(str(error)) from error
            if preset := PRESETS.get(chosen.preset or ""):
                differs = "; ".join(differences(preset, {**context.params, **vars(chosen)}))
                say(f"{chosen.preset} is {preset.source}. Remaining differences: {differs}.")
        command(**values, chosen=chosen)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _with_preset(chosen: Learning, context: typer.Context) -> Learning:
    """The options of a preset, where one is named, under those that were given. Raises UsageError."""
    from updater.benchmark.continual.presets import PRESETS, settings

    given = settings(chosen.settings or ())
    if chosen.preset is None:
        return replace(chosen, **given)
    if chosen.preset not in PRESETS:
        raise UsageError(f"--preset {chosen.preset!r} is not known: choose of {', '.join(PRESETS)}")
    options = PRESETS[chosen.preset].options.items()
    left: dict[str, Any] = {k: v for k, v in options if not _was_given(context, k)}
    return replace(chosen, **left | given)


def _was_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def setup_of(chosen: Learning) -> "Setup":
    """The Setup of these options, without a device and without weights. Raises UsageError."""
    from detector.model.backbone import BackboneError, architecture_of
    from detector.model.network import Network
    from detector.release.manifest import NO_BACKBONE
    from updater.benchmark.continual.presets import CLOSED_FORM, rates, scheme_of
    from updater.benchmark.continual.setup import Setup
    from updater.training.step import Options

    scheme, aggregate, share = scheme_of(chosen.scheme)
    options = Options(
        scheme=cast(Any, scheme),
        aggregate=cast(Any, aggregate),
        binary_share=share,
        distillation=chosen.distillation,
        distilled=cast(Any, chosen.distilled),
        exposure=cast(Any, chosen.exposure),
    )
    backbone = chosen.backbone or NO_BACKBONE
    if backbone != NO_BACKBONE:
        import updater.benchmark.networks.backbones  # noqa: F401 - timm knows them from then on
    try:
        shape = {name: getattr(chosen, name) for name in ("head", "crop_px", "forensic", "width")}
        architecture = architecture_of(backbone, frozen=chosen.learner in CLOSED_FORM, **shape)
        Network(architecture, 2)
    except BackboneError as error:
        raise UsageError(f"--backbone {error}") from error
    except ValueError as error:
        raise UsageError(f"--crop-px {chosen.crop_px}: {error}") from error
    setup = Setup(
        chosen.learner,
        options,
        architecture,
        chosen.memory,
        rates=rates(chosen.rate),
        batch=chosen.batch,
        augment=cast("Augment", chosen.augment),
        optimizer=cast("Optimizer", chosen.optimizer),
        schedule=cast("Schedule", chosen.schedule),
        weight_decay=chosen.weight_decay,
        label_smoothing=chosen.label_smoothing,
        mixup=chosen.mixup,
        distortions=tuple(filter(None, chosen.distortions.split(","))),
        rejection=tuple(name.strip() for name in chosen.rejection.split(",")),
    )
    if chosen.epochs is not None:
        setup = setup.trained_epochs(chosen.epochs)
    if chosen.head_epochs is not None:
        setup = replace(setup, head_epochs=chosen.head_epochs, least_steps=0)
    return setup


def with_weights(setup: "Setup", chosen: Learning) -> "Setup":
    """The setup with what its network begins with, and with the experts that are named.

    Raises UsageError, and WeightsError for a file or a download that gives no fitting weights.
    """
    from updater.experts.adding import experts_of
    from updater.settings import TIMM, UpdaterSettings
    from updater.training.weights import choose_weights as chosen_weights

    # It tells of each try to reach the hub; what came of them is told once.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    own = chosen.checkpoint
    begun = chosen_weights(setup.architecture.backbone, None if own == TIMM else own, own == TIMM)
    experts = experts_of(chosen.expert or (), UpdaterSettings().work_dir, chosen.crop_px)
    return replace(setup, start_from=begun, experts=experts)


def device_of(name: str) -> "torch.device":
    """The device of that name, or the best one for auto. Raises UsageError."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name} is none: choose of cpu, cuda, auto") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: there are {torch.cuda.device_count()} GPUs that torch can use")
    return device
