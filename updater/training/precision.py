"""How a step is computed: half precision, threads, and seeds.

The front end's residuals are differences of grey levels and would drown in 8 or 11 bits; what lies above the
pooled features costs next to nothing. Nothing here has an effect on a CPU.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


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
    """Seed what torch draws on the CPU and on the device, as `torch.manual_seed` does.

    That asks after every kind of device that there might be, which takes a third of a step on rows.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
