"""Commands that run whole stacks: up, down, demo, bench. What they do lies elsewhere.

Each imports what it needs only when it is called: the other commands must not wait for torch.
"""

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli_output import CommandError

Report = Annotated[Path | None, typer.Option("--report", help="write the results there as JSON")]


def up() -> None:
    """Start broker, TorchServe, detector, memory, updater and server here, and leave them running."""
    from deploy.local import commands

    commands.up()


def down() -> None:
    """Stop the stack that runs here and remove what it left."""
    from deploy.local import commands

    commands.down()


def demo(
    seed: Annotated[int, typer.Option(min=0, help="seed of all that is random")] = 0,
    unseen: Annotated[
        str | None, typer.Option(help="the forgery family that release 0 never saw; else the default one")
    ] = None,
    report: Report = None,
) -> None:
    """Run the whole loop from training to hot swap, with a table of counts at the end."""
    from deploy.demo import run
    from deploy.demo.operator import OperatorError
    from deploy.demo.traffic import TrafficError

    try:
        holds = run.main(seed, unseen, report)
    except (OperatorError, TrafficError) as error:
        raise CommandError(str(error)) from error
    if not holds:
        raise CommandError("not every claim holds; the table above says which")


def bench(report: Report = None) -> None:
    """Measure images per second from topic to committed verdict against the same model in a bare loop."""
    from deploy import bench as benchmark
    from deploy.demo.operator import OperatorError
    from deploy.demo.traffic import TrafficError

    try:
        benchmark.main(report)
    except (OperatorError, TrafficError) as error:
        raise CommandError(str(error)) from error
