"""Release 0: `forgewatch up` has the shipped one; `forgewatch demo` makes it by the public commands."""

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from pydantic import SecretStr

import deploy
import detector
import ingest
import memory
import updater
from deploy.demo import plan
from deploy.demo.operator import Operator, Story
from deploy.demo.plan import CORES, Library, release_zero_settings
from deploy.environment import read_environment
from deploy.local import commands
from deploy.local.broker import CACHE
from deploy.local.commands import await_verdicts
from deploy.local.processes import StackError
from deploy.local.record import HOME, read_record
from deploy.local.stack import await_answer, launch_room, process_address
from deploy.release_records import PROPOSED
from detector.features.texture_weights import fill_weights
from detector.release.artifact import EVALUATION, MODEL, Artifact, verify
from detector.release.manifest import ArtifactError
from ingest.durable import folder_aside
from memory.records import REAL
from updater.benchmark.synthetic.in_part import make_clip
from updater.benchmark.synthetic.stream import made_in_parallel, write_file, write_folders
from updater.candidate.gates import make_gates
from updater.deploy_client import DeployClient, DeployError, candidate_of
from updater.records import Evaluation
from updater.settings import UpdaterSettings

_STATE = ("memory", "updater", "deploy")
"""The folders below a stack's `run` that hold what making release 0 leaves behind."""

_PASSING = ("-wal", "-shm")


@dataclass
class Rendering:
    """Labelled media on its way to a folder, in processes of its own beside whatever else starts."""

    folder: Path
    made: tuple[int, int] = (0, 1)
    ended: "Future[int] | None" = None


@contextmanager
def render(library: Library, folder: Path) -> Iterator[Rendering]:
    """Write the library's media below `folder`, for `forgewatch import`, until left."""
    rendering, left = Rendering(folder), Event()

    def write() -> int:
        pictures = sum(library.counts.values())
        total = pictures + library.clips

        def at(done: int, _: int) -> None:
            rendering.made = done, total
            if left.is_set():
                raise CancelledError

        write_folders(folder, library.seed, "train", library.counts, processes=CORES, progress=at)
        jobs = [(library.seed, "train", REAL, index) for index in range(library.clips)]
        clips = made_in_parallel(make_clip, jobs, processes=CORES, at_once=1)
        for number, clip in enumerate(clips, start=1):
            write_file(folder, clip)
            at(pictures + number, total)
        return total

    with ThreadPoolExecutor(1, thread_name_prefix="rendering") as thread:
        rendering.ended = thread.submit(write)
        try:
            yield rendering
        finally:
            left.set()


def make_release_zero(
    story: Story, operator: Operator, library: Library, rendering: Rendering, beside: Callable[[], object]
) -> None:
    """Import labelled media and train on it by the public commands; keep the result.

    beside: called once the media are rendered. Raises OperatorError and StackError.
    """
    media, run, ended = rendering.folder, rendering.folder.parent, rendering.ended
    assert ended is not None
    with updater_by(run.parent, release_zero_settings(library.seed, library.unseen)):
        with (
            story.step("media", "Render labelled media: photographs, scenes, forgeries, clips"),
            story.bar("files") as bar,
        ):
            while not wait([ended], timeout=0.2).done:
                bar(*rendering.made)
            bar(*[ended.result()] * 2)
        beside()
        with story.step("import", "Take it into the memory"):
            operator.run("import", str(media))
        with story.step("train", "Train release 0, export it and prove the export, evaluate it, propose it"):
            operator.update()
    shutil.rmtree(media)
    kept = _cache_path(library)
    shutil.rmtree(kept.parent, ignore_errors=True)
    _copy(run, kept)


@contextmanager
def updater_by(home: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Let the updater of the stack in `home` work by these settings, and then again by the stack's alone.

    What is asked of it while it starts again waits in its queue. Raises StackError.
    """
    record = read_record(home / "stack.json")
    if record is None:
        raise StackError("the stack was stopped while release 0 was made")
    supervisor, run = record.supervisor(), home.absolute() / "run"
    port = read_environment(home / "stack.env")["FORGEWATCH_UPDATER_METRICS_PORT"]
    await_answer(launch_room(supervisor, run, "updater", settings), process_address(port, "readyz"))
    try:
        yield
    finally:
        launch_room(supervisor, run, "updater")


def restore(library: Library, run: Path) -> bool:
    """Bring back an earlier run's release, whole, before the stack starts; False where nothing fits."""
    kept = _cache_path(library)
    if not kept.is_dir():
        return False
    _copy(kept, run)
    return True


def _cache_path(library: Library) -> Path:
    return CACHE / f"release-0-seed-{library.seed}-without-{library.unseen}" / _digest_of_makings(library)


def _digest_of_makings(library: Library) -> str:
    """A digest of release 0's inputs: code, packages, settings, the media's numbers."""
    total = hashlib.sha256(json.dumps(asdict(library), sort_keys=True).encode())
    for package in (ingest, detector, memory, updater, deploy):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            total.update(f"{package.__name__}/{path.relative_to(folder)}\0".encode() + path.read_bytes())
    for name, version in sorted((d.name, d.version) for d in metadata.distributions()):
        total.update(f"{name}=={version}\0".encode())
    own = ("FORGEWATCH_UPDATER_", "FORGEWATCH_MEMORY_")
    trained_by = {name: value for name, value in os.environ.items() if name.startswith(own)}
    trained_by |= release_zero_settings(library.seed, library.unseen)
    for name, value in sorted(trained_by.items()):
        total.update(f"{name}={value}\0".encode())
    return total.hexdigest()


def _copy(source: Path, target: Path) -> None:
    """Copy the state of a stack that is kept, whole or not at all."""
    with folder_aside(target) as aside:
        for folder, _, files in chain.from_iterable(os.walk(source / name) for name in _STATE):
            there = aside / Path(folder).relative_to(source)
            there.mkdir(parents=True, exist_ok=True)
            for name in files:
                path, copy = Path(folder) / name, there / name
                if path.suffix == ".sqlite":
                    with closing(sqlite3.connect(path)) as kept, closing(sqlite3.connect(copy)) as own:
                        kept.backup(own)
                elif not name.endswith(_PASSING):
                    shutil.copy2(path, copy)


SEED = 0

SHIPPED = Path(__file__).with_name("release-0")
"""The release that `make default-release` made; its graph lies there without the weights of others."""
SHIPPED_DIGEST = "f9d6e79ad6311f5ec80179c9786dabccb2008a683ac7701834c252331b68298f"
_BECAUSE_BROKEN = "it ships: most forgeries of strangers pass until they are named, and its card says so"


def copy_shipped(folder: Path, kept: Path = SHIPPED) -> Artifact:
    """Copy the release that ships into a new folder, fill the weights in, and verify each byte.

    Raises StackError, of one line, where it is damaged or exchanged, or the weights are not installed.
    """
    try:
        shutil.copytree(kept, folder)
        graph = folder / MODEL
        graph.write_bytes(fill_weights(graph.read_bytes()))
        return verify(folder, SHIPPED_DIGEST)
    except (ArtifactError, OSError, ModuleNotFoundError, ValueError) as error:
        raise StackError(
            f"the release that ships is not served, for {error}: restore {kept}, or `forgewatch up --empty`"
        ) from error


def up(home: Path = HOME) -> None:
    """Start the stack in `home`, see to it that a release is live and scores, and leave it running.

    Raises OperatorError and the local stack's errors; the stack then goes on without a release.
    """
    story = Story(SEED, plan.DEFAULT_UNSEEN)
    commands.up(home, story.console)
    settings = read_environment(home / "stack.env")
    if await_verdicts(settings, story.console):
        return
    operator = Operator(story.console, settings)
    try:
        if not {release["state"] for release in operator.ask("releases")} & set(PROPOSED):
            _propose_shipped(home / "run", settings)
        operator.approve_newest(_BECAUSE_BROKEN)
    except (KeyboardInterrupt, SystemExit):
        story.console.print("The stack runs on without a release: `forgewatch up` goes on, `down` ends it.")
        raise
    await_verdicts(settings, story.console)


def _propose_shipped(run: Path, settings: Mapping[str, str]) -> None:
    bounds = UpdaterSettings(
        deploy_url=settings["FORGEWATCH_DEPLOY_URL"],
        deploy_token=SecretStr(settings["FORGEWATCH_UPDATER_DEPLOY_TOKEN"]),
    )
    with TemporaryDirectory(dir=run) as aside, DeployClient(bounds) as deploy_server:
        artifact = copy_shipped(Path(aside, "release"))
        evaluation = Evaluation.model_validate_json((artifact.folder / EVALUATION).read_bytes())
        try:
            deploy_server.put(artifact)
            deploy_server.propose(candidate_of(artifact, 0, make_gates(bounds, evaluation)))
        except DeployError as error:
            raise StackError(f"the release that ships was not taken: {error}") from error
