"""Commands that run whole stacks: up, down, demo, throughput. What they do lies elsewhere.

Each imports what it needs only when it is called: the other commands must not wait for torch.
"""

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.output import CommandError, UsageError, say, writable

Report = Annotated[Path | None, typer.Option("--report", help="write the results there as JSON")]


def up(
    empty: Annotated[bool, typer.Option("--empty", help="without the demonstration's release 0")] = False,
) -> None:
    """Start broker, TorchServe, detector, memory, updater and server here, and leave them running."""
    from deploy.local import commands

    if empty:
        return commands.up()
    from deploy.demo.operator import OperatorError
    from deploy.demo.release_zero import up as up_with_release

    try:
        up_with_release()
    except OperatorError as error:
        raise CommandError(f"the stack runs, but without a release: {error}") from error


def topics(
    partitions: Annotated[int, typer.Option(min=1, help="of media and all that follows from it")] = 4,
    replication: Annotated[int, typer.Option(min=1, help="copies of each partition")] = 1,
) -> None:
    """Create the topics that are missing on the broker of the settings, as wide as they must be."""
    from deploy.layouts import all_topics
    from ingest.kafka.access import barred
    from ingest.kafka.options import REQUEST_TIMEOUT_S, kafka_options
    from ingest.kafka.topics import ensure_topics
    from ingest.settings import IngestSettings

    ingest = IngestSettings()
    if problem := barred(kafka_options(ingest), REQUEST_TIMEOUT_S):
        raise CommandError(f"{problem}; start a broker, or see the FORGEWATCH_INGEST_… settings")
    wanted = all_topics(ingest, partitions)
    created = ensure_topics(ingest, wanted, replication)
    say(f"created: {', '.join(created)}" if created else "every topic is there already")


def migrate() -> None:
    """Bring the tables of memory, updater and deploy to today's layout. It may be run again at any time."""
    from deploy.layouts import LayoutError, migrate_all
    from ingest.process.frame import WrongSettingError

    try:
        for done in migrate_all():
            say(done)
    except WrongSettingError as error:
        raise UsageError(str(error)) from error
    except LayoutError as error:
        raise CommandError(str(error)) from error


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
    from deploy.demo.operator import OperatorError, StoryError
    from deploy.demo.traffic import TrafficError

    writable(report)
    try:
        holds = run.main(seed, unseen, report)
    except StoryError as error:
        raise UsageError(str(error)) from error
    except (OperatorError, TrafficError) as error:
        raise CommandError(str(error)) from error
    if not holds:
        raise CommandError("not every claim holds; the table above says which")


def throughput(report: Report = None) -> None:
    """Measure images per second from topic to committed verdict against the same model in a bare loop."""
    from deploy.bench import throughput as measurement
    from deploy.demo.operator import OperatorError
    from deploy.demo.traffic import TrafficError

    writable(report)
    try:
        measurement.main(report)
    except (OperatorError, TrafficError) as error:
        raise CommandError(str(error)) from error
