"""`forgewatch record`: the audit log of every room, and its proof."""

from datetime import datetime
from typing import Annotated

import typer

from deploy.cli.output import CommandError, JsonFlag, client, print_json, say, show_list

app = typer.Typer(help="Read the audit log of every act, and verify it.")


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="at most so many acts")] = 30,
    actor: Annotated[str | None, typer.Option(help="only acts of this actor")] = None,
    action: Annotated[str | None, typer.Option(help="only acts of this kind, such as label")] = None,
    since: Annotated[datetime | None, typer.Option(help="only acts at this time or later")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List acts, the newest first."""
    with client() as api:
        entries = api.record(limit, actor, action, since.astimezone() if since else None)
    columns = {"#": "sequence", "at": "at", "by": "actor", "what": "action", "to_what": "subject"}
    show_list(entries, as_json, "the record", **columns)


@app.command()
def verify(as_json: JsonFlag = False) -> None:
    """Prove the whole record anew; name the first row that is not as it was written.

    The chain shows what was changed inside of it. The heads on the topic show that its tail was cut off, or
    that it was computed anew as a whole.
    """
    with client() as api:
        head = api.prove_record()
    if as_json:
        print_json(head)
    if head.not_compared is not None:
        raise CommandError(
            f"the record's {head.size} acts follow from each other; whether its end was cut off is not known:"
            f" {head.not_compared}"
        )
    if not as_json:
        known = f", {head.accepted} differences accepted" if head.accepted else ""
        say(f"the record is whole: {head.size} acts, {head.published} as published{known}, head {head.hash}")


@app.command()
def accept(
    difference: Annotated[str, typer.Argument(help="which, as `forgewatch record verify` names it")],
    reason: Annotated[str, typer.Argument(help="why that is so: which backup was restored, and when")],
) -> None:
    """Put on record that the record differs so from its published heads, and that you know why.

    It is refused where anything else differs by now.
    """
    with client() as api:
        api.accept_difference(difference, reason)
    say("accepted; it is on record")
