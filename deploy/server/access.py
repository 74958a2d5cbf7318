"""Who may ask the deploy server, and who is asking.

There is one shared token and a name that the caller gives: good for a record of who did what among
people who trust each other, no proof against one of them.
"""

import ipaddress
import secrets
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Header, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from deploy.settings import DeploySettings
from ingest.process.frame import WrongSettingError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")

_bearer = HTTPBearer(auto_error=False, description="FORGEWATCH_DEPLOY_TOKEN, where the server has one")


def refuse_insecure(settings: DeploySettings) -> None:
    """Raise WrongSettingError where the server would listen beyond loopback without a token."""
    if settings.token is not None and settings.token.get_secret_value() == "":
        raise WrongSettingError("FORGEWATCH_DEPLOY_TOKEN", "it is empty; unset it or give it a value")
    if settings.token is None and not _is_loopback(settings.host):
        raise WrongSettingError(
            "FORGEWATCH_DEPLOY_HOST",
            f"{settings.host} can be reached from elsewhere; set FORGEWATCH_DEPLOY_TOKEN as well",
        )


def authorised(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Let a request through that bears the token, or any where none is set; else 401."""
    settings: DeploySettings = request.app.state.settings
    if settings.token is None:
        return
    given = credentials.credentials if credentials else ""
    if not secrets.compare_digest(given.encode(), settings.token.get_secret_value().encode()):
        raise HTTPException(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})


def _named(
    x_forgewatch_actor: Annotated[
        str,
        Header(
            min_length=1,
            max_length=600,
            description="who does this; percent-encoded UTF-8. Written to the record. (That it must be "
            "given also keeps web pages of other origins from sending a simple form here.)",
        ),
    ],
) -> str:
    actor = unquote(x_forgewatch_actor).strip()
    if not actor or not actor.isprintable() or len(actor) > 200:
        raise HTTPException(422, "X-Forgewatch-Actor must be 1 to 200 printable characters")
    return actor


Actor = Annotated[str, Depends(_named)]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
