"""`forgewatch record`: who did what in every room, and whether the record is as it was written."""

from datetime import datetime
from typing import Annotated

import typer

from deploy.cli.output import JsonFlag, client, print_json, print_table, say

app = typer.Typer(help="Read the record of every act, and prove it.")


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="at most so many acts")] = 30,
    actor: Annotated[str | None, typer.Option(help="only what this one did")] = None,
    action: Annotated[str | None, typer.Option(help="only acts of this kind, such as label")] = None,
    since: Annotated[datetime | None, typer.Option(help="only what was done then or later")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List acts, the newest first."""
    with client() as api:
        entries = api.record(limit, actor, action, since.astimezone() if since else None)
    if as_json:
        return print_json(entries)
    print_table(
        "the record",
        ["#", "at", "by", "what", "to what"],
        ([entry.sequence, entry.at, entry.actor, entry.action, entry.subject] for entry in entries),
    )


@app.command()
def verify(as_json: JsonFlag = False) -> None:
    """Prove the whole record anew; name the first row that is not as it was written.

    A tail that was cut off, and a chain that was computed anew as a whole, show only beside a head that was
    written down elsewhere: keep what this prints.
    """
    with client() as api:
        head = api.prove_record()
    if as_json:
        return print_json(head)
    say(f"the record is whole: {head.size} acts, head {head.hash}")
