"""`forgewatch notices`: how each webhook stands, and a notice to try them with."""

import time

import typer

from deploy.cli.output import ActorOption, CommandError, JsonFlag, client, print_json, print_table, say
from deploy.notice_records import WebhookState

app = typer.Typer(help="Look at the webhooks that notices go to, and try them.", invoke_without_command=True)

_PATIENCE_S, _INTERVAL_S = 15.0, 0.2


@app.callback()
def show(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Show each webhook's delivered and waiting notices, and the reason of its last failure."""
    if context.invoked_subcommand is not None:
        return
    with client() as api:
        states = api.notices.webhooks()
    if as_json:
        print_json(states)
    else:
        _show(states)


@app.command("test")
def try_(actor: ActorOption = None) -> None:
    """Send every webhook a notice, and say whether all have taken it."""
    with client(actor) as api:
        if not api.notices.webhooks():
            raise CommandError("there is no webhook: FORGEWATCH_DEPLOY_WEBHOOKS of the server names them")
        api.notices.test()
        until, states = time.monotonic() + _PATIENCE_S, api.notices.webhooks()
        while any(state.waiting for state in states) and time.monotonic() < until:
            time.sleep(_INTERVAL_S)
            states = api.notices.webhooks()
    _show(states)
    if waiting := [str(state.number) for state in states if state.waiting]:
        raise CommandError(f"not taken yet by webhook {', '.join(waiting)}: the server goes on trying")
    say("all have taken it")


def _show(states: list[WebhookState]) -> None:
    print_table(
        "webhooks",
        ["#", "host", "form", "took the last", "wait", "since", "last error"],
        [[w.number, w.host, w.form, w.taken_at, w.waiting, w.waiting_since, w.error] for w in states],
    )
