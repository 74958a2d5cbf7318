"""The gate before every endpoint: who asks, whether the endpoint's rule lets them, and where a browser asks
from.

It stands before the body is read, so that a stranger's bytes are parsed by nothing. A proxy says who asks by
two headers, as oauth2-proxy gives them after an OIDC login; they are believed of a proxy alone that connects
from an address of FORGEWATCH_DEPLOY_PROXY_ADDRESSES.
"""

import getpass
import hashlib
import hmac
import ipaddress
import secrets
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any
from urllib.parse import SplitResult, unquote, urlsplit

from fastapi import Depends, HTTPException, Request
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response

from deploy.access.roles import ANYONE, PEOPLE, Person, checked_name, identity_of, rule_of
from deploy.access.sessions import COOKIE, Sessions
from deploy.access.tokens import OWN, Tokens, hash_of
from deploy.settings import DeploySettings
from ingest.process.frame import WrongSettingError
from memory.database import UnknownLayoutError, cause_of, migrate, open_engine

USER, GROUPS = "x-forwarded-user", "x-forwarded-groups"


def person_of_proxy(settings: DeploySettings, peer: str | None, headers: Headers) -> Person | None:
    """Whom the proxy names, with the roles of their groups; None where no such proxy asks or it names nobody.

    peer: the address that the connection comes from. Raises HTTPException (400) where the proxy let a header
    of its own client through beside its own, or the name is none.
    """
    if not _is_trusted(settings, peer) or USER not in headers:
        return None
    if any(len(headers.getlist(name)) > 1 for name in (USER, GROUPS)):
        raise HTTPException(400, f"{USER} and {GROUPS} may come once: the proxy must drop its clients' own")
    # Header bytes are Latin-1 by the standard; proxies send UTF-8.
    user, groups = (
        headers.get(name, "").encode("latin-1").decode(errors="replace") for name in (USER, GROUPS)
    )
    name = checked_name(user)
    if name is None or identity_of(name) in OWN:
        raise HTTPException(400, f"{USER} must be a person's name: 1 to 200 characters, none of them unseen")
    named = {group.strip() for group in groups.split(",")}
    return Person(
        name, frozenset(role for group, role in settings.proxy_roles.items() if group in named), "proxy"
    )


def _is_trusted(settings: DeploySettings, peer: str | None) -> bool:
    try:
        address = ip_address(peer or "")
    except ValueError:
        return False  # a socket file has no address
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return any(address in network for network in settings.proxy_addresses)


MAX_BODY_BYTES = 2**20
"""Of a request, but where an endpoint takes files and sets a limit of its own."""
UNLIMITED = sys.maxsize
"""Of an endpoint that takes files: it counts their bytes itself."""

ACTOR = "x-forgewatch-actor"
FORM_HEADER, FORM_FIELD = "x-forgewatch-form", "form_token"
"""Where a script's request and where a form bears the token of the page that it comes from."""

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_SAFE = ("GET", "HEAD")
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class AccessError(Exception):
    """The database of tokens and sessions cannot be opened, read or written; retryable."""


@dataclass(frozen=True)
class Access:
    """What tells who asks. `app.state.access` holds it."""

    settings: DeploySettings
    tokens: Tokens
    sessions: Sessions
    _form_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def open_to_all(self) -> bool:
        """Whether whoever reaches the server may do everything: on loopback, where no person has a token.

        Raises SQLAlchemyError.
        """
        settings = self.settings
        return is_loopback(settings.host) and not settings.proxy_addresses and not self.tokens.for_people()

    def tokens_given(self) -> tuple[tuple[str, str], ...] | None:
        """Of each token that ever was, who gave it and to whom; None where nobody is told from another.

        Raises SQLAlchemyError.
        """
        entries = self.tokens.entries()
        return None if self.open_to_all() else tuple((entry.made_by, entry.name) for entry in entries)

    def whoever(self, request: Request) -> Person:
        """Who asks. Raises HTTPException, 401 where nobody says so, and AccessError."""
        with answering():
            return self._whoever(request)

    def _whoever(self, request: Request) -> Person:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (person := self.tokens.person_of(hash_of(token.strip()))):
            return person
        if self.open_to_all():
            return _of_loopback(request)
        if scheme:
            raise HTTPException(
                401, "this token is unknown, expired or revoked", {"WWW-Authenticate": "Bearer"}
            )
        peer = request.client.host if request.client else None
        if (person := person_of_proxy(self.settings, peer, request.headers)) is not None:
            return person
        session = request.cookies.get(COOKIE)
        if session is not None and (person := self.sessions.person_of(session)) is not None:
            return person
        ended = "your session has ended: log in again" if session else "a valid bearer token is needed"
        raise HTTPException(401, ended, {"WWW-Authenticate": "Bearer"})

    def form_token(self, request: Request) -> str:
        """What a page puts into each of its forms, so that no other page can send one.

        It fits the session alone; where there is none, the person, and this process.
        """
        session, person = request.cookies.get(COOKIE), person_of(request)
        key = session.encode() if session and person.by == "session" else self._form_key
        return hmac.new(key, f"form of {person.name}".encode(), hashlib.sha256).hexdigest()

    async def require_own_page(self, request: Request) -> None:
        """Raise HTTPException (403) unless a page of this server sends this; 422 where nobody says who does.

        Whoever bears a token themselves is no page. A header that no form can send shows as much, where the
        browser need not have logged in.
        """
        person = person_of(request)
        if (
            request.method in _SAFE
            or person.by == "token"
            or (ACTOR in request.headers and person.by != "session")
        ):
            return
        if "origin" not in request.headers and person.by == "loopback":
            raise HTTPException(422, "say who you are in X-Forgewatch-Actor")
        require_same_origin(request)
        given = request.headers.get(FORM_HEADER)
        if given is None and request.headers.get("content-type", "").startswith(_FORMS):
            given = str((await request.form()).get(FORM_FIELD, ""))
        if not hmac.compare_digest((given or "").encode(), self.form_token(request).encode()):
            raise HTTPException(403, "this form is of another session: load the page again")


@contextmanager
def answering() -> Iterator[None]:
    """Raise AccessError where the database does not answer."""
    try:
        yield
    except SQLAlchemyError as error:
        raise AccessError(f"cannot tell who asks: {cause_of(error)}") from error


@contextmanager
def open_access(settings: DeploySettings) -> Iterator[Access]:
    """Open the tokens and sessions of deploy's database. Raises AccessError."""
    try:
        engine = open_engine(settings.database_url)
        with engine.begin() as connection:
            migrate(connection, "deploy.releases.migrations")
    except (SQLAlchemyError, OSError, ImportError, UnknownLayoutError) as error:
        raise AccessError(f"cannot open the tokens: {cause_of(error)}") from error
    try:
        tokens = Tokens(engine, settings)
        yield Access(settings, tokens, Sessions(engine, tokens))
    finally:
        engine.dispose()


class GuardedRoute(APIRoute):
    """An endpoint with its rule beside it; one without a rule answers nobody.

    Give it to an `APIRouter` as `route_class`, and to each endpoint `openapi_extra=least("viewer")`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint behind its gate. The handler that follows reads the body first of all."""
        handle, rule = super().get_route_handler(), rule_of(self.openapi_extra)

        async def guard(request: Request) -> Response:
            if ANYONE in rule:
                return await handle(request)
            access: Access = request.app.state.access
            person = await run_in_threadpool(access.whoever, request)
            request.state.person = person
            if not person.may(rule):
                raise HTTPException(403, _denial(person, rule))
            try:
                await access.require_own_page(request)
                return await handle(request)
            finally:
                await request.close()  # a form's files, where they were read here

        return guard


def person_of(request: Request) -> Person:
    """Who asks, as the gate found (a FastAPI dependency)."""
    person: Person = request.state.person
    return person


Who = Annotated[Person, Depends(person_of)]


def name_of(person: Who) -> str:
    """The name of who asks, for the record (a FastAPI dependency)."""
    return person.name


Actor = Annotated[str, Depends(name_of)]


def require_same_origin(request: Request) -> None:
    """Raise HTTPException (403) where a browser does not say that a page of this very server sends this."""
    settings: DeploySettings = request.app.state.settings
    own = {request.headers.get("host"), urlsplit(settings.url).netloc}
    if split(request.headers.get("origin", "")).netloc not in own - {None, ""}:
        raise HTTPException(403, "a page of another origin may send nothing here")


def split(url: str) -> SplitResult:
    """Take an address apart that a stranger gave. Raises HTTPException (400) where it is none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise HTTPException(400, f"a header names no address: {error}") from error


def refuse_insecure(settings: DeploySettings, access: Access | None = None) -> None:
    """Raise WrongSettingError where the server would listen beyond loopback and ask nobody who they are."""
    for name in ("token", "detector_token", "updater_token"):
        value = getattr(settings, name)
        if value is not None and value.get_secret_value() == "":
            raise WrongSettingError(f"FORGEWATCH_DEPLOY_{name.upper()}", "it is empty: unset it or set it")
    if is_loopback(settings.host) or settings.token is not None or settings.proxy_addresses:
        return
    if access is None or not access.tokens.for_people():
        raise WrongSettingError(
            "FORGEWATCH_DEPLOY_HOST",
            f"{settings.host} can be reached from elsewhere; set FORGEWATCH_DEPLOY_TOKEN as well",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def owner() -> str:
    """Whom a stack without tokens takes everybody for: the user that it runs as."""
    with suppress(OSError, KeyError, ImportError):  # a container's user may have no name
        return getpass.getuser()
    return "owner"


def _of_loopback(request: Request) -> Person:
    # A page of another origin whose name was made to resolve to loopback is no loopback caller.
    if split(f"//{request.headers.get('host', '')}").hostname not in LOOPBACK_NAMES:
        raise HTTPException(400, "Invalid host header")
    given = request.headers.get(ACTOR)
    name = owner() if given is None else checked_name(unquote(given))
    if name is None:
        raise HTTPException(422, "X-Forgewatch-Actor must be 1 to 200 characters, none of them unseen")
    return Person(name, frozenset({"admin", "detector", "updater"}), "loopback")


def _denial(person: Person, rule: frozenset[str]) -> str:
    roles = ", ".join(sorted(person.roles)) or "no role here"
    may = " or ".join(role for role in (*PEOPLE, "detector", "updater") if role in rule)
    return f"{person.name} ({roles}) may not do this: it takes {may or 'a rule, which this endpoint lacks'}"
