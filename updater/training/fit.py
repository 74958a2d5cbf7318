"""The loop of training, whatever is trained: batches, a loss, a rate that changes, and a checkpoint.

A step on one device, on a share of a batch beside other processes, or in half precision is the same loop:
what differs is in the loss and in the `Descent`.
"""

import ctypes
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from ingest.durable import file_aside
from updater.progress import Steps, no_steps
from updater.training import processes

B = TypeVar("B")

_log = structlog.get_logger()

SAVE_EVERY = 25
"""steps between two states of a checkpoint"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**30
_FORMAT = "1"
"""of a checkpoint"""


class DivergedError(ValueError):
    """A weight is no number any more. Fatal for the training; its checkpoint was saved before."""


class Checkpoint:
    """One file that holds the latest state of one run; without a path it holds nothing.

    Of several processes the first writes it and all read it, so they need one disk.

    identity says everything that the run was made from: a file with another identity, of another
    format, or damaged, is not gone on from and is overwritten. Stages follow in the order given.
    """

    def __init__(self, path: Path | None, identity: str, stages: tuple[str, ...]) -> None:
        self._path = path
        self._identity = identity
        self._stages = stages

    def resume(self, stage: str, network: torch.nn.Module, optimiser: torch.optim.Optimizer) -> int | None:
        """Load the checkpoint and return the steps done of this stage.

        Returns 0 where nothing was saved up to this stage. Returns None where the run was already past
        it: then only the network is loaded, since what the next stage reads follows from it.
        """
        saved = self._read()
        if saved is None:
            return 0
        saved_stage, step, tensors = saved
        if self._stages.index(saved_stage) < self._stages.index(stage):
            return 0
        network.load_state_dict(
            {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
        )
        if saved_stage != stage:
            return None
        state: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimiser."):
                _, number, name = key.split(".", 2)
                state.setdefault(int(number), {})[name] = value
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
        return step

    def save(self, stage: str, step: int, network: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Write the state after `step` steps of the stage, durably."""
        if self._path is None or not processes.is_first():
            return
        tensors = {f"network.{k}": v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
        saved: dict[int, dict[str, Any]] = optimiser.state_dict()["state"]
        for number, values in saved.items():
            tensors |= {f"optimiser.{number}.{k}": v.detach().cpu().contiguous() for k, v in values.items()}
        metadata = {"format": _FORMAT, "identity": self._identity, "stage": stage, "step": str(step)}
        with file_aside(self._path) as aside:
            save_file(tensors, aside, metadata)

    def remove(self) -> None:
        """Drop the file: the run is done."""
        if self._path is not None and processes.is_first():
            self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[str, int, dict[str, torch.Tensor]] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT or metadata.get("identity") != self._identity:
                    return None
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
        return metadata["stage"], int(metadata["step"]), tensors


@dataclass(frozen=True)
class Descent:
    """How long, how fast and by what rule parameters go down a loss. The optimiser's are those trained."""

    optimiser: torch.optim.Optimizer
    steps: int
    set_rate: Callable[[int], None] = lambda step: None
    """called with the number of each step, from 0, before it: sets the optimiser's rates"""
    longest: float | None = None
    """gradients are scaled down to this norm; None: never"""
    shared: Sequence[nn.Parameter] = ()
    """whose gradients are of this process's share of a batch, and are added up"""
    update: Callable[[torch.optim.Optimizer], object] = lambda optimiser: optimiser.step()
    """changes the parameters by their gradients"""


class TrainingStage(NamedTuple):
    """A stage of a training whose state is kept, and which all processes go through together."""

    checkpoint: Checkpoint
    name: str


def fit(
    module: nn.Module,
    batches: Callable[[range], Generator[B, None, None]],
    loss: Callable[[B], Tensor],
    descent: Descent,
    stage: TrainingStage | None = None,
    progress: Steps = no_steps,
) -> None:
    """Train a module in place, on from its checkpoint. Its mode stays as it is.

    batches: yields those of some steps in order. loss: of one batch, a scalar. stage: None for a training of
    this process alone that begins anew each time. progress gets (steps done, of how many). Raises
    DivergedError.
    """
    if next(module.parameters()).device.type == "cpu":
        keep_freed_memory()
    done: int | None = 0
    if stage is not None:
        done = stage.checkpoint.resume(stage.name, module, descent.optimiser)
        # None may write the next state before all have read this one.
        processes.wait()
    if done is None:
        return
    parameters = [value for group in descent.optimiser.param_groups for value in group["params"]]
    with closing(batches(range(done, descent.steps))) as ready:
        for number, batch in enumerate(ready, done):
            descent.set_rate(number)
            descent.optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(batch))
            processes.add_gradients(descent.shared)
            if descent.longest is not None:
                nn.utils.clip_grad_norm_(parameters, descent.longest)
            descent.update(descent.optimiser)
            progress(number + 1, descent.steps)
            if (number + 1) % SAVE_EVERY == 0 or number + 1 == descent.steps:
                if not all(bool(torch.isfinite(value).all()) for value in parameters):
                    raise DivergedError(f"the training diverged: by step {number + 1} a weight is no number")
                if stage is not None:
                    stage.checkpoint.save(stage.name, number + 1, module, descent.optimiser)
    if stage is not None:
        processes.agree(module)


def by_schedule(schedule: LRScheduler, every: int = 1) -> Callable[[int], None]:
    """Return a function that advances a schedule of torch's by one after every so many steps."""

    def set_rate(step: int) -> None:
        if step and step % every == 0:
            schedule.step()

    return set_rate


def in_epochs(
    order: Callable[[], Tensor], size: int, epochs: int
) -> Callable[[range], Generator[Tensor, None, None]]:
    """Return a generator of batches of so many numbers, the last of an epoch maybe smaller.

    order: gives the numbers of all items anew for each epoch, int64 [n]. Such a training begins at step 0.
    """

    def batches(steps: range) -> Generator[Tensor, None, None]:
        for _ in range(epochs):
            yield from torch.split(order(), size)

    return batches


@functools.cache
def keep_freed_memory() -> bool:
    """Have glibc keep freed memory, up to 1 GiB, for later use; return whether it will.

    By default it hands blocks of some MiB back to the system, which fills them with zeros when they are
    asked for again: with the activations of a batch, a third of the time of a training step. For the whole
    process. False without glibc, where nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _LARGEST))


def half_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a backbone is trained: bfloat16 on a GPU that has it."""
    if device.type != "cuda" or not torch.cuda.is_bf16_supported():
        return nullcontext()
    return torch.autocast("cuda", dtype=torch.bfloat16)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Let operations on the CPU have one thread each, where that is the device.

    On rows of some hundred numbers two threads take twice the processor time of one and are not done sooner.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed torch's draws on the CPU and on the device, as `torch.manual_seed` does.

    That asks after every kind of device that there might be, which takes a third of a step on rows.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
