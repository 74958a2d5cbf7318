"""A candidate's training in all the processes that torchrun started: one of them asks the others in.

The first process carries the update; the others hold nothing and wait until it has something to train. They
get the step from it, take their share of it (`updater.training.processes`) and are done.
"""

import os
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, and not marked as exported

from updater.progress import no_progress
from updater.training import processes, two_stages
from updater.training.step import Step, TrainedModel

_CALL = "forgewatch/call"
_LONGEST = timedelta(days=7)
"""Nobody waits as long as this: torchrun ends those who wait when the first process dies."""


def learn(step: Step) -> TrainedModel:
    """Train on a step, with the other processes where there are any.

    Crops on disk have to stay there: the others read them for themselves. Raises processes.PeerLostError
    where one of them dies.
    """
    if processes.process_count() == 1:
        return two_stages.learn(step)
    _store().set(_CALL, step.device.type)
    with processes.join_processes(step.device) as device:
        processes.broadcast(replace(step, device=torch.device("cpu"), progress=no_progress))
        return two_stages.learn(replace(step, device=device))


def run_follower() -> None:
    """Wait until the first process trains, and train with it; or until it says that it does not.

    Raises processes.PeerLostError.
    """
    with processes.with_peers():
        store = _store()
        store.wait([_CALL], _LONGEST)
        called = store.get(_CALL).decode()
    if called:
        with processes.join_processes(torch.device(called)) as device:
            step: Step = processes.broadcast(None)
            two_stages.learn(replace(step, device=device))


def stop_followers() -> None:
    """Tell the other processes, where they still wait, that there is nothing to train.

    Where they cannot be told, torchrun is gone, and this process was not meant to outlive it.
    """
    if processes.process_count() > 1:
        with suppress(RuntimeError):
            _store().set(_CALL, "")


def _store() -> TCPStore:
    # torchrun's own, which all its processes reach; a word goes through it.
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
