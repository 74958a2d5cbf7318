"""What the benchmarks are told of a network and its training: the options, and the Setup made of them."""

import inspect
import logging
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from deploy.cli.output import UsageError

if TYPE_CHECKING:
    import torch

    from detector.architecture import Architecture
    from updater.benchmark.setup import Setup
    from updater.training.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options of every benchmark: the network, and how it is trained."""

    scheme: Annotated[str, typer.Option(help="bc, mc or mt: binary, multi-class, multi-task")] = "mc"
    aggregate: Annotated[str, typer.Option(help="of mt: how two scores are made of the logits")] = "sumlogit"
    mt_weight: Annotated[float, typer.Option(min=0, max=1, help="of mt: lambda")] = 0.5
    head: Annotated[str, typer.Option(help="linear or cosine (LinFC, CosFC)")] = "linear"
    distillation: Annotated[float, typer.Option(min=0, help="weight of its loss; 0 for none")] = 1.0
    balanced: Annotated[bool, typer.Option(help="fine-tune the head on balanced batches")] = True
    backbone: Annotated[
        str | None, typer.Option(help='a timm model, or "none" for forensic features alone; else the default')
    ] = None
    checkpoint: Annotated[
        Path | None, typer.Option(help="begin with own weights: safetensors of the backbone or of a network")
    ] = None
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="begin with timm's weights, which are downloaded")
    ] = False
    exposure: Annotated[str, typer.Option(help="pseudo-forgeries: none, class or outliers")] = "class"
    training: Annotated[str, typer.Option(help="rejection that is trained for, such as logit-norm")] = "none"
    seed: Annotated[int, typer.Option(min=0, help="the first seed")] = 0
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto"
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None


@dataclass(frozen=True, kw_only=True)
class Learning(Training):
    """Options of the benchmarks that learn a stream of tasks."""

    learner: Annotated[str, typer.Option(help="how a task is learnt after another")] = "softmax-rehearsal"
    memory: Annotated[int, typer.Option(min=0, help="exemplars of earlier tasks, all together")] = 500
    rejection: Annotated[
        str, typer.Option(help="scores of rejection, NAME,NAME,…; the figures are of the first")
    ] = "fused"
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

    @wraps(command)
    def run(**values: Any) -> None:
        chosen = kind(**{option.name: values.pop(option.name) for option in options})
        command(**values, chosen=chosen)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def setup_of(chosen: Training) -> "Setup":
    """The Setup of these options, on `chosen.device` and without weights. Raises UsageError."""
    from pydantic import TypeAdapter, ValidationError

    from detector.architecture import Architecture
    from detector.backbone import BackboneError, architecture_of
    from detector.network import Network
    from updater.benchmark.scoring import scores_offered
    from updater.benchmark.setup import Setup
    from updater.learners.methods import LEARNERS
    from updater.rejection.heads.methods import HEADS
    from updater.training.step import Options, Rejection

    learning = chosen if isinstance(chosen, Learning) else Learning()
    _one_of("learner", learning.learner, LEARNERS)
    names = tuple(name.strip() for name in learning.rejection.split(","))
    for name in names:
        _one_of("rejection", name, scores_offered())
    if chosen.training in HEADS and chosen.training not in get_args(Rejection):
        raise UsageError(f"{chosen.training} trains a head of its own: name it with --rejection")
    named = ("scheme", "aggregate", "mt_weight", "distillation", "balanced", "exposure")
    options = {name: getattr(chosen, name) for name in named} | {"rejection": chosen.training}
    try:
        of_training = TypeAdapter(Options).validate_python(options)
        architecture = architecture_of(chosen.backbone or Architecture().backbone, head=chosen.head)
        Network(architecture, 2)
    except ValidationError as error:
        first = error.errors()[0]
        option = {"rejection": "training"}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise UsageError(f"--{option.replace('_', '-')} {first['input']}: {first['msg']}") from error
    except BackboneError as error:
        raise UsageError(f"--backbone {error}") from error
    return Setup(learning.learner, of_training, architecture, learning.memory, rejection=names)


def device_of(name: str) -> "torch.device":
    """The device of that name, or the best one for auto. Raises UsageError."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name} is none: choose of cpu, cuda, auto") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: there are {torch.cuda.device_count()} GPUs that torch can use")
    return found


def weights_of(chosen: Training, architecture: "Architecture") -> "Weights | None":
    """What training begins with; None for weights drawn at random. Raises UsageError."""
    from updater.training.weights import chosen as chosen_weights

    if chosen.checkpoint and chosen.pretrained:
        raise UsageError("--checkpoint and --pretrained are two ways to begin: choose one")
    # It tells of each try to reach the hub; what came of them is told once.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    return chosen_weights(architecture.backbone, chosen.checkpoint, chosen.pretrained)


def _one_of(option: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(f"--{option} {name!r} is not known: choose of {', '.join(known)}")
