"""The API on tokens and on a browser's session."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Form, HTTPException, Path, Request
from fastapi.responses import RedirectResponse, Response

from deploy.access.guard import Access, GuardedRoute, Who, answering, require_same_origin
from deploy.access.roles import TokenEntry, TokenMade, TokenRequest, anyone, least
from deploy.access.sessions import COOKIE, WHOLE

log = structlog.get_logger()
router = APIRouter(route_class=GuardedRoute)

Name = Annotated[str, Path(min_length=1, max_length=200, description="whom the token names")]

_LOGIN_BYTES = 2**15
"""Of what a stranger sends: a token, and a path whose letters are percent-encoded."""


def _access(request: Request) -> Access:
    access: Access = request.app.state.access
    return access


@router.post("/tokens", tags=["access"], status_code=201, openapi_extra=least("admin"))
def add_token(request: Request, who: Who, body: TokenRequest) -> TokenMade:
    """Give a person or a machine a token, which is shown in this answer and never again.

    409 where they have one, or the name is none. The first token of a person is an admin's.
    """
    with answering():
        made = _access(request).tokens.add(body, who)
    log.info("token added", name=made.name, role=made.role, expires_at=made.expires_at, actor=who.name)
    return made


@router.get("/tokens", tags=["access"], openapi_extra=least("admin"))
def list_tokens(request: Request) -> list[TokenEntry]:
    """Every token that was ever given, the newest first; not those of the server's settings."""
    with answering():
        return _access(request).tokens.entries()


@router.post("/tokens/{name}/revoke", tags=["access"], openapi_extra=least("admin"))
def revoke_token(request: Request, who: Who, name: Name) -> TokenEntry:
    """End a token at once, and the sessions that it began; 404 where there is none."""
    with answering():
        ended = _access(request).tokens.revoke(name, who.name)
    log.info("token revoked", name=name, actor=who.name)
    return ended


@router.post(
    "/login", tags=["access"], openapi_extra=anyone(), response_class=Response, max_body_size=_LOGIN_BYTES
)
def login(
    request: Request,
    token: Annotated[str, Form(max_length=1000)],
    next: Annotated[str, Form(max_length=2000, description="the path to go on to")] = "/",
) -> Response:
    """Begin a browser's session by a token; the answer sets its cookie and leads on to `next`.

    30 minutes without a request end it, and 12 hours whole. 401 where the token is not good, 403 where a
    page of another origin sends it.
    """
    request.state.next = next  # a mistyped token leads there, too
    require_same_origin(request)
    with answering():
        session = _access(request).sessions.begin(token.strip())
    if session is None:
        with answering():
            _access(request).sessions.refuse(request.client.host if request.client else "")
        log.warning("login refused")
        raise HTTPException(401, "this token is unknown, expired or revoked")
    answer = RedirectResponse(own_path(next), 303)
    age_s = int(WHOLE.total_seconds())
    answer.set_cookie(COOKIE, session, max_age=age_s, secure=True, httponly=True, samesite="strict")
    return answer


@router.post("/logout", tags=["access"], openapi_extra=least("viewer"), response_class=Response)
def logout(request: Request, who: Who) -> Response:
    """End the browser's session; the answer drops its cookie. 403 where the form is of another page."""
    with answering():
        _access(request).sessions.end(request.cookies.get(COOKIE, ""), who.name)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, secure=True, httponly=True, samesite="strict")
    return answer


def own_path(path: str) -> str:
    """A path of this server to lead on to; / where it would lead elsewhere."""
    own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if own else "/"
