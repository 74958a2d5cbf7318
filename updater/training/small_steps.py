"""What a step of milliseconds cannot afford: sharing operations out to threads, and seeding all devices."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
