"""`forgewatch up`: the demonstration's stack with its release 0, left running."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.demo import plan
from deploy.demo.operator import Operator
from deploy.demo.release_zero import make_release_zero, render, restore
from deploy.demo.story import Story
from deploy.local import commands
from deploy.local.processes import StackError
from deploy.local.record import HOME, read_environment, read_record
from deploy.local.serving import await_verdicts
from deploy.local.stack import await_answer, launch_room, process_address

SEED = 0


def up(home: Path = HOME) -> None:
    """Start the stack in `home`, see to it that a release is live and scores, and leave it running.

    Raises OperatorError and the local stack's errors; the stack then goes on without a release.
    """
    story = Story(SEED, plan.DEFAULT_UNSEEN)
    library = plan.Library(story.seed, story.unseen)
    if not (home / "run").exists():
        restore(library, home / "run")
    commands.up(home, story.console)
    settings = read_environment(home / "stack.env")
    operator = Operator(story.console, settings)
    states = [release["state"] for release in operator.ask("releases")]
    if "live" in states:
        return
    if "proposed" not in states:
        rendering = render(library, home / "run" / "library")
        with _updater_of(home, plan.training_settings(story.seed, story.unseen)):
            make_release_zero(story, operator, library, home / "run", rendering)
    operator.approve_newest()
    await_verdicts(settings, story.console)
    commands.tell(home, story.console)


@contextmanager
def _updater_of(home: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Let the stack's updater work by these settings, and then again by the user's alone."""
    record = read_record(home / "stack.json")
    if record is None:
        raise StackError("the stack was stopped while release 0 was made")
    supervisor, run = record.supervisor(), home.absolute() / "run"
    port = read_environment(home / "stack.env")["FORGEWATCH_UPDATER_METRICS_PORT"]
    await_answer(launch_room(supervisor, run, "updater", settings), process_address(port, "readyz"))
    try:
        yield
    finally:
        await_answer(launch_room(supervisor, run, "updater"), process_address(port, "readyz"))
