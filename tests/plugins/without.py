"""A room's process with one of its defences switched off, for controls: `python without.py DEFENCE ROOM`."""

import os
import runpy
import signal
import sys
from typing import Any


def retries() -> None:
    """An answer of 5xx is taken for the request's fault."""
    from detector.serving import torchserve

    torchserve.FailedError = torchserve.TorchServeRefusedError  # type: ignore[assignment,misc]


def healing() -> None:
    """What TorchServe lost is not registered again."""
    from detector.serving.rollout import Serving

    Serving.request_reload = lambda self, artifact: None  # type: ignore[method-assign]


def signals() -> None:
    """SIGTERM ends the process wherever it stands."""
    signal.signal = lambda *_: None  # type: ignore[assignment,return-value]


def closing() -> None:
    """Files stay open: a hundred more with each request to TorchServe."""
    from detector.serving.torchserve import TorchServe

    predict = TorchServe.predict

    def leaking(self: TorchServe, *about: Any) -> Any:
        for _ in range(100):
            os.dup(0)
        return predict(self, *about)

    TorchServe.predict = leaking  # type: ignore[method-assign]


if __name__ == "__main__":
    defence, room = sys.argv[1:]
    {"retries": retries, "healing": healing, "signals": signals, "closing": closing}[defence]()
    sys.argv = [room]
    runpy.run_module(room, run_name="__main__", alter_sys=True)
