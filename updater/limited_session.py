"""A release's graphs in a child with limits of memory and time, for they come from the uploader of a release.

`python -m updater.limited_session` is the child. It ends with the process that asks it.
"""

import os
import subprocess
import sys
import time
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_CORE, RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE, setrlimit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.release.artifact import Artifact, load
from detector.release.contract import PoolingInput
from detector.release.tensors import GraphContract, ModelOutput, Request, decode, encode
from detector.serving.torchserve import DEADLINE_S

MEMORY_BYTES = 2 * 2**30
"""of a child, beside four times the graphs that it loads: what a decoder's host has"""
_PROCESSOR_S, _WALL_S = 30, 60
"""for one request: what a graph's own deadline does not end, such as one operator that takes for ever"""
_PICTURES, _MOST_SIDE_PX = 64, 1024
MOST_PIXELS = 64 * 512**2
"""of one request on trial"""
_WITH_ANSWER = b"+"
_passed: set[tuple[str, str]] = set()
"""graphs that passed here, by digest and contract: most releases have their parent's localizer and scanner"""


class GraphError(Exception):
    """A release's graph fails, or does not answer within its limits; one line. Fatal for the release."""


def limit_process(memory_bytes: int, file_bytes: int, processor_s: int) -> None:
    """Limit this process: its data, each file that it writes, and its processor time from its start on."""
    for limit, value in {RLIMIT_DATA: memory_bytes, RLIMIT_FSIZE: file_bytes, RLIMIT_CORE: 0}.items():
        setrlimit(limit, (value, value))
    setrlimit(RLIMIT_CPU, (processor_s, RLIM_INFINITY))


def child_environment() -> dict[str, str]:
    """Return this process's environment without secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FORGEWATCH_", "AWS_"))}


class LimitedSession:
    """Answers as `detector.serving.session.ReleaseSession` does, from a child that starts when it is asked.

    One that fails is ended, and the next request has a new one. Close it.
    """

    def __init__(self, artifact: Artifact, threads: int) -> None:
        self._artifact, self._threads = artifact, threads
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None

    def close(self) -> None:
        if self._child is not None:
            (child, pipe), self._child = self._child, None
            with child, pipe:
                child.kill()

    def score(self, request: Request) -> ModelOutput:
        """Let the graph answer that takes arrays of these names. Raises GraphError."""
        try:
            _, pipe = self._child = self._child or self._start()
            pipe.send_bytes(encode(request))
            answer = pipe.recv_bytes() if pipe.poll(_WALL_S) else b""
        except (OSError, EOFError):
            answer = b""
        if answer.startswith(_WITH_ANSWER):
            return decode(answer[1:])
        self.close()
        limits = f"{_memory(self._artifact) >> 20} MiB of memory and {_PROCESSOR_S} s of processor time"
        raise GraphError(answer.decode() or f"it does not answer in {limits}")

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        with theirs:
            arguments = map(str, (theirs.fileno(), self._artifact.folder, self._threads))
            options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            options |= {"env": child_environment(), "pass_fds": [theirs.fileno()]}
            # A group of its own: what a terminal sends to the process that asks is for that one to act on.
            command = [sys.executable, "-P", "-m", __name__, *arguments]
            child = subprocess.Popen(command, process_group=0, **options)  # noqa: S603 - our own module
        return child, ours


def try_release(artifact: Artifact) -> None:
    """Have each graph answer for 1, 8 and 64 pictures that nobody can know before. Raises GraphError.

    Where 64 at once would take long, they come in eights, for a minute at most. A graph that passed in this
    process before is left out.
    """
    with closing(LimitedSession(artifact, threads=1)) as session:
        for graph, contract in artifact.graphs.items():
            known = artifact.manifest.files[graph.model], contract.model_dump_json()
            try:
                if known not in _passed:
                    _try_graph(contract, session)
            except GraphError as error:
                raise GraphError(f"{graph.model}: {error}") from error
            _passed.add(known)


def _try_graph(contract: GraphContract, session: LimitedSession) -> None:
    rng = np.random.default_rng()
    views = {spec.name: spec for spec in contract.inputs if len(spec.shape) == 4}
    sides = {name: [int(side) for side in spec.shape[1:3]] for name, spec in views.items()}
    if not all(0 < side <= _MOST_SIDE_PX for pair in sides.values() for side in pair):
        raise GraphError(f"the sides of its pictures are not 1 to {_MOST_SIDE_PX} pixels")
    trials = {name: trial_pictures(max(side), rng)[:, : side[0], : side[1]] for name, side in sides.items()}
    most = min(_PICTURES, *(MOST_PIXELS // (height * width) for height, width in sides.values()))
    rows = rng.permutation(_PICTURES)[:most]

    def request(batch: NDArray[np.integer]) -> Request:
        arrays = {name: pictures[batch].astype(views[name].dtype) for name, pictures in trials.items()}
        for spec in contract.inputs:
            square = np.eye if isinstance(spec, PoolingInput) else np.zeros
            arrays.setdefault(spec.name, square(len(batch), dtype=spec.dtype))
        return arrays

    session.score(request(rows[:1]))  # starts the child, so its time says nothing
    since_s = time.monotonic()
    session.score(request(rows[:8]))
    size = most if (time.monotonic() - since_s) * 16 <= DEADLINE_S else 8
    for start in range(size % most, most, size):  # the first eight passed
        if time.monotonic() - since_s < _WALL_S:
            session.score(request(rows[start : start + size]))


def trial_pictures(side_px: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a graph's trial pictures, uint8 (64, S, S, 3): noise, flat pictures, edges, single pixels."""
    rows, columns = np.indices((side_px, side_px), np.int32)[..., None]
    flat = [0, 255, *rng.choice(np.arange(1, 255), 25, replace=False)]
    colours = [[255 * (bits >> place & 1) for place in range(3)] for bits in range(1, 7)]
    edges = [(rows + columns) % 2, rows % 2, columns * 2 >= side_px, rows + columns == 0, rows + columns > 0]
    drawn = rng.integers(0, 256, (_PICTURES, side_px, side_px, 3), np.uint8)
    for i, picture in enumerate([*flat, *colours, *(255 * edge for edge in edges), 255 * rows // side_px]):
        drawn[i] = picture
    drawn[-8:-4] = drawn[-8:-4] // 128 * 255
    drawn[-4:] = drawn[-4:] // 16 + 120
    return drawn


def _memory(artifact: Artifact) -> int:
    return MEMORY_BYTES + 4 * sum((artifact.folder / graph.model).stat().st_size for graph in artifact.graphs)


def main(pipe: Connection, artifact: Artifact, threads: int) -> None:
    """Be the child: answer each request, with the problem if there is one."""
    from detector.serving.session import ReleaseSession

    try:
        limit_process(_memory(artifact), 0, _PROCESSOR_S)
        session = ReleaseSession(artifact, threads, deadline_s=DEADLINE_S)
        while True:
            request = decode(pipe.recv_bytes())
            limit_process(_memory(artifact), 0, int(time.process_time()) + _PROCESSOR_S)
            pipe.send_bytes(_WITH_ANSWER + encode(session.score(request)))
    except EOFError:
        pass
    except Exception as error:  # ONNX Runtime's errors are of many classes
        pipe.send_bytes((" ".join(str(error).split())[:200] or type(error).__name__).encode())


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), load(Path(sys.argv[2])), int(sys.argv[3]))
