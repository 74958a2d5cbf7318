"""One training in several processes, one a device, with the result of a single one.

torchrun starts the processes; each draws the same batch and passes its own share of the crops through the
backbone, which is where the time goes. The backbone's features, a short row a crop, are then gathered, and
what lies above them, the loss with it, is computed by every process on the whole batch. So no loss has to
be a mean over items: pairs of items, means over some of them and extrema come out as in one process. Going
back, a process follows its own rows; the mean of all backbone gradients is that of the whole batch. Batch
normalisation takes its statistics over all shares. What a backbone draws at random by itself (dropout, drop
path: timm's defaults have none) it draws for its share alone, and that differs with the number of processes.

Without torchrun nothing here has an effect.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class ProcessesError(ValueError):
    """The processes cannot share a batch. Fatal."""


class PeerLostError(Exception):
    """Another process of this training died or left, so this one cannot go on. Retryable."""


def process_count() -> int:
    """Return how many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def starts_first() -> bool:
    """Return whether this is the first of the processes that torchrun started; without it, it is."""
    return int(os.environ.get("RANK", "0")) == 0


def gpus(device: str) -> int:
    """Return how many GPUs this process may use, none where the device asked for is the CPU."""
    return 0 if device == "cpu" else torch.cuda.device_count()


@contextmanager
def with_peers() -> Iterator[None]:
    """Turn torch's errors about a lost process into a PeerLostError."""
    try:
        yield
    except RuntimeError as error:  # gloo raises nothing more special
        raise PeerLostError(f"another process of this training was lost: {error}") from error


def _add(values: Tensor) -> None:
    with with_peers():
        dist.all_reduce(values)


@contextmanager
def join_processes(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, for as long as the block lasts; yield this one's device.

    device: as asked for. "cuda" becomes the GPU of this process's number on its host, with NCCL between
    them; otherwise gloo. Started alone, nothing is joined and the device stays.
    """
    if process_count() == 1:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        with with_peers():
            dist.init_process_group("nccl", device_id=device)
    else:
        with with_peers():
            dist.init_process_group("gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def number() -> int:
    """Return which of them this process is, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    """Return whether this process writes the results of all."""
    return number() == 0


def wait() -> None:
    if count() > 1:
        with with_peers():
            dist.barrier()


def broadcast(value: object, rank: int = 0) -> Any:
    """Return one process's object, the first's if none is named, which is pickled on its way."""
    values = [value]
    if count() > 1:
        with with_peers():
            dist.broadcast_object_list(values, rank)
    return values[0]


def agree(network: nn.Module) -> None:
    """Give all processes the first one's network: rounding on a GPU may have moved them apart."""
    if count() > 1:
        with with_peers():
            for value in network.state_dict().values():
                dist.broadcast(value, 0)


def add_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace gradients of a share of the batch by those of the whole batch.

    On their way back through `by_share` they were added up over the processes, each of which had the whole
    loss: so theirs is the mean.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if count() == 1 or not grads:
        return
    flat = torch.cat([grad.flatten() for grad in grads]) / count()
    _add(flat)
    for grad, part in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def by_share(function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return function(images), float32 [N, B], each process having computed its share of the rows.

    images: float32 [N, ...], the same in every process. Raises ProcessesError where there are fewer of
    them than processes.
    """
    if count() == 1:
        return function(images)
    total, rank = len(images), dist.get_rank()
    if total < count():
        raise ProcessesError(f"{count()} processes cannot share a batch of {total} crops")
    first, end = total * rank // count(), total * (rank + 1) // count()
    with _WholeBatchStatistics():
        own = function(images[first:end])
    whole = own.new_zeros(total, *own.shape[1:])
    whole[first:end] = own
    return _sum(whole)


class _Summed(torch.autograd.Function):
    """The sum over processes; each of them reads it, so going back the gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        whole = own.contiguous().clone()
        _add(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Summed.forward(ctx, gradient)


class _WholeBatchStatistics(TorchFunctionMode):
    """Inside it, batch normalisation in training takes its statistics over all processes' shares.

    torch's own SyncBatchNorm is for GPUs alone. Calls without running statistics are left as they are:
    so backbones standardise their weights, which are the same in every process.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _batch_norm(
    own: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training or running_mean is None or running_var is None:
        return F.batch_norm(own, running_mean, running_var, weight, bias, training, momentum, eps)
    value, over = own.to(torch.promote_types(own.dtype, torch.float32)), [0, *range(2, own.ndim)]
    shape = [1, -1] + [1] * (own.ndim - 2)
    share = value.new_tensor([value.numel() / value.shape[1]])
    sums = _sum(torch.cat([value.sum(over), share]))
    total = sums[-1].detach()
    mean = sums[:-1] / total
    centred = value - mean.view(shape)
    variance = _sum(centred.square().sum(over)) / total
    with torch.no_grad():
        running_mean.lerp_(mean.to(running_mean), momentum)
        running_var.lerp_((variance * total / (total - 1)).to(running_var), momentum)
    result = centred * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(own.dtype)


def _sum(own: Tensor) -> Tensor:
    return cast(Tensor, _Summed.apply(own))
