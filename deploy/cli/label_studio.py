"""`forgewatch label-studio`: waiting items go out as tasks, annotations come back."""

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.output import CommandError, JsonFlag, client, print_json, print_table, say, warn

app = typer.Typer(help="Label waiting items in Label Studio.")


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where config.xml and tasks.json are put")],
    cluster: Annotated[list[str], typer.Option(help="only this cluster; may be given again")] = [],  # noqa: B006
    most: Annotated[int, typer.Option(min=1, max=1000, help="tasks at most")] = 200,
) -> None:
    """Write waiting items as tasks: config.xml for the labelling interface, tasks.json to import."""
    with client() as api:
        given = api.label_studio_tasks(cluster, most)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.xml").write_text(given.config)
    (folder / "tasks.json").write_text(json.dumps(given.tasks))
    say(f"{len(given.tasks)} tasks of {given.waiting} items that wait: config.xml and tasks.json in {folder}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the project's export, as JSON")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="change nothing; print the plan")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Label what Label Studio's annotators labelled, in your name; theirs stand beside it. Twice is once.

    What two annotators call otherwise is left out, and so is what bears another label here.
    """
    from deploy.label_studio import NoExportError, read

    with client() as api:
        try:
            export = read(file.read_bytes(), api.label_studio_project())
        except NoExportError as error:
            raise CommandError(f"{file}: {error}") from error
        done = api.annotate([(a.exemplar, a.family, a.annotator) for a in export.annotations], dry=dry_run)
    left_out = [*export.left_out, *done.left_out]
    if as_json:
        return print_json(done.model_copy(update={"left_out": left_out}))
    print_table("labels", ["annotator, by the file", "called", "label"], done.labels)
    labelled = "would be labelled" if dry_run else "labelled"
    say(f"{done.labelled} items {labelled}, {done.already} were called the same, {len(left_out)} left out")
    for line in left_out:
        warn(f"left out: {line}")
