"""`forgewatch up`: the demonstration's stack with its release 0, left running."""

import os
from pathlib import Path

from deploy.demo import plan
from deploy.demo.operator import Operator
from deploy.demo.release_zero import make_release_zero, render, restore
from deploy.demo.story import Story
from deploy.local import commands

SEED = 0


def up(home: Path = commands.HOME) -> None:
    """Start the stack in `home`, see to it that a release is live, and leave it running.

    Raises OperatorError and the local stack's errors; the stack then goes on without a release.
    """
    story = Story(SEED, plan.DEFAULT_UNSEEN)
    library = plan.Library(story.seed, story.unseen)
    os.environ.update(plan.training_settings(story.seed, story.unseen))
    if not (home / "run").exists():
        restore(library, home / "run")
    commands.up(home, story.console)
    # Not into this process's environment: release 0 is kept under a digest of what was set there.
    lines = (home / "stack.env").read_text().splitlines()
    operator = Operator(story.console, dict(line.split("=", 1) for line in lines))
    states = [release["state"] for release in operator.ask("releases")]
    if "live" in states:
        return
    if "proposed" not in states:
        rendering = render(library, home / "run" / "library")
        make_release_zero(story, operator, library, home / "run", rendering)
    operator.approve_newest()
    commands.tell(home, story.console)
