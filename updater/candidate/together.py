"""A candidate's training in all the processes that torchrun started: one of them asks the others in.

The first process carries the update; the others hold nothing and wait until it has something to train. They
read the step from the run's folder, take their share of it (`updater.training.processes`) and are done.
"""

import os
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, and not marked as exported

from updater.training import processes, softmax_rehearsal
from updater.training.step import Learnt, Step
from updater.training.step_file import load_step, save_step

_CALL = "forgewatch/call"
_LONGEST = timedelta(days=7)
"""Nobody waits as long as this: torchrun ends those who wait when the first process dies."""


def learn(step: Step, file: Path) -> Learnt:
    """Train on a step, with the other processes where there are any; they read it from `file`.

    Raises processes.PeerLostError where one of them dies.
    """
    if processes.started() == 1:
        return softmax_rehearsal.learn(step)
    save_step(file, step)
    _store().set(_CALL, f"{step.device.type} {file}")
    with processes.joined(step.device) as device:
        learnt = softmax_rehearsal.learn(replace(step, device=device))
    file.unlink(missing_ok=True)
    return learnt


def follow() -> None:
    """Wait until the first process trains, and train with it; or until it says that it does not.

    Raises processes.PeerLostError and OSError.
    """
    with processes.with_peers():
        store = _store()
        store.wait([_CALL], _LONGEST)
        called = store.get(_CALL).decode()
    if called:
        kind, file = called.split(" ", 1)
        with processes.joined(torch.device(kind)) as device:
            softmax_rehearsal.learn(load_step(Path(file), device))


def dismiss() -> None:
    """Tell the other processes, where they still wait, that there is nothing to train.

    Where they cannot be told, torchrun is gone, and this process was not meant to outlive it.
    """
    if processes.started() > 1:
        with suppress(RuntimeError):
            _store().set(_CALL, "")


def _store() -> TCPStore:
    # torchrun's own, which all its processes reach; a path and a word go through it.
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
