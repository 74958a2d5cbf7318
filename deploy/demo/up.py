"""`forgewatch up`: the demonstration's stack with its release 0, left running."""

from pathlib import Path

from deploy.demo import plan
from deploy.demo.operator import Operator
from deploy.demo.release_zero import make_release_zero, render, restore
from deploy.demo.story import Story
from deploy.local import commands
from deploy.local.record import HOME, read_environment
from deploy.local.serving import await_verdicts

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
        make_release_zero(story, operator, library, home / "run", rendering)
    operator.approve_newest()
    await_verdicts(settings, story.console)
    commands.tell(home, story.console)
