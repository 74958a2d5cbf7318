"""`forgewatch notices`: how each webhook stands, and a notice to try them with."""

import time

import typer

from deploy.cli.output import ActorOption, CommandError, JsonFlag, client, print_json, print_table, say
from deploy.notice_records import WebhookState

app = typer.Typer(help="Look at the webhooks that notices go to, and try them.", invoke_without_command=True)

_PATIENCE_S, _INTERVAL_S = 15.0, 0.2


@app.callback()
def show(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Show what each webhook has taken, what waits, and why the last try failed."""
    if context.invoked_subcommand is not None:
        return
    with client() as api:
        found = api.notices.webhooks()
    if as_json:
        print_json(found)
    else:
        _show(found)


@app.command("test")
def try_(actor: ActorOption = None) -> None:
    """Send every webhook a notice, and say whether all have taken it."""
    with client(actor) as api:
        if not api.notices.webhooks():
            raise CommandError("there is no webhook: FORGEWATCH_DEPLOY_WEBHOOKS of the server names them")
        api.notices.test()
        until, found = time.monotonic() + _PATIENCE_S, api.notices.webhooks()
        while any(each.waiting for each in found) and time.monotonic() < until:
            time.sleep(_INTERVAL_S)
            found = api.notices.webhooks()
    _show(found)
    if waiting := [str(each.number) for each in found if each.waiting]:
        raise CommandError(f"not taken yet by webhook {', '.join(waiting)}: the server goes on trying")
    say("all have taken it")


def _show(found: list[WebhookState]) -> None:
    print_table(
        "webhooks",
        ["#", "host", "form", "took the last", "wait", "since", "last error"],
        [[w.number, w.host, w.form, w.taken_at, w.waiting, w.waiting_since, w.error] for w in found],
    )
