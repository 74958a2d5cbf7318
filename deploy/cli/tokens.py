"""`forgewatch token`: who has one, for which role, until when."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from deploy.access.roles import Role, TokenEntry, TokenRequest
from deploy.cli.output import ActorOption, JsonFlag, client, show_list, show_result

app = typer.Typer(help="Give people and machines tokens, list them, end them.")

Name = Annotated[str, typer.Argument(help="whom the token names, as the record will say")]


@app.command()
def add(
    name: Name,
    role: Annotated[Role, typer.Option("--role", help="their role")],
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="until it expires")] = 90,
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give somebody a token, which is shown this once.

    The first person's is an admin's: from then on nobody gets in without a token.
    """
    with client(actor) as api:
        made = api.add_token(TokenRequest(name=name, role=role, days=days))
    line = f"{made.name} is {made.role} until {made.expires_at.astimezone():%Y-%m-%d}. It is not shown again:"
    show_result(made, as_json, f"{line}\nexport FORGEWATCH_DEPLOY_TOKEN={made.token}")


@app.command("list")
def list_(as_json: JsonFlag = False) -> None:
    """List every token: owner, role, expiry and last use; never the token itself."""
    with client() as api:
        columns = {"expires": "expires_at", "last_used": "used_at", "made": "made_at", "by": "made_by"}
        show_list(api.tokens(), as_json, "tokens", name="name", role="role", state=_state, **columns)


@app.command()
def revoke(name: Name, actor: ActorOption = None, as_json: JsonFlag = False) -> None:
    """End somebody's token at once, and the sessions of browsers that it began."""
    with client(actor) as api:
        ended = api.revoke_token(name)
    show_result(ended, as_json, f"the token of {ended.name} ({ended.role}) is revoked")


def _state(token: TokenEntry) -> str:
    if token.revoked_at is not None:
        return f"revoked by {token.revoked_by}"
    return "valid" if token.expires_at > datetime.now(UTC) else "expired"
