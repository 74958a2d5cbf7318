"""The deploy server: releases, artifacts, the memory's clusters and labels, updates, over HTTP."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.middleware.body_limit import MAX_BODY_SIZE_SCOPE_KEY
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.access import api as access
from deploy.access.guard import MAX_BODY_BYTES, AccessError, GuardedRoute
from deploy.access.roles import anyone
from deploy.access.tokens import TokenError, UnknownTokenError
from deploy.lineage.onward import UnknownLineageError
from deploy.page.app import add_page, is_page, refuse
from deploy.page.render import Secured
from deploy.record.chain import BrokenChainError
from deploy.record.heads import DifferenceChangedError, HeadsDifferError
from deploy.record.record import RecordError
from deploy.releases import metrics
from deploy.releases.approval import UnknownReleaseError
from deploy.releases.artifacts import (
    ArtifactMissingError,
    ArtifactRefusedError,
    ArtifactsUnavailableError,
    ArtifactTooLargeError,
)
from deploy.releases.evidence import EvidenceError
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.ledger import LedgerError
from deploy.releases.standing import replay
from deploy.server import (
    accuracy,
    clusters,
    label_studio,
    lineage,
    memory,
    notices,
    purge,
    record,
    releases,
    rollouts,
    status,
)
from deploy.server.services import Services
from deploy.server.surroundings import ContextCache, ask
from deploy.settings import DeploySettings
from ingest.kafka.topics import TopicError
from ingest.sandbox.sandbox import SandboxUnavailableError
from memory.clusters.views import UnknownClusterError
from memory.crops.crop_store import CropsMissingError, CropsUnavailableError
from memory.index.shared_index import IndexBusyError
from memory.rows import UnknownExemplarError
from memory.store import ExemplarMemoryError, StoreUnavailableError

Refuse = Callable[[Request, str], Awaitable[ASGIApp]]


class TooLargeMiddleware:
    """Puts a line that says how much fits in place of the bare one of Starlette's limiter.

    The limiter answers outside of all other middleware, so this stands around it.
    """

    def __init__(self, app: ASGIApp, refuse: Refuse) -> None:
        """refuse makes the answer out of its reason."""
        self._app, self._refuse = app, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        instead = False

        async def send_or_replace(message: Message) -> None:
            nonlocal instead
            if message["type"] == "http.response.start" and message["status"] == 413:
                instead = (b"content-type", b"text/plain; charset=utf-8") in message["headers"]
            if not instead:
                await send(message)
            elif message["type"] == "http.response.start":
                request = Request(scope)
                length, limit = request.headers.get("content-length"), scope[MAX_BODY_SIZE_SCOPE_KEY]
                reason = f"the body has {length} bytes, and at most {limit} are taken here: send less at once"
                await (await self._refuse(request, reason))(scope, receive, send)

        await self._app(scope, receive, send_or_replace if scope["type"] == "http" else send)


log = structlog.get_logger()

DESCRIPTION = """\
Everything that an operator does with Forgewatch goes through here: look at what was rejected as
unknown, name it, ask for an update, see its evidence, approve or reject it, roll back.

Send your token as a bearer token with every request: it says who you are, and what you may do. Each
operation names the roles that may call it (`x-forgewatch-roles`). Where the server listens on loopback and
no person has a token, everybody may do everything; say who you are in `X-Forgewatch-Actor` (1 to 200
characters, percent-encoded UTF-8) with everything that changes something. What is done is put on record.
"""

# The nearest class of an error's own decides, whatever the order here.
_STATUS: dict[type[Exception], int] = {
    ApprovalError: 409,
    EvidenceError: 409,
    UnknownReleaseError: 404,
    UnknownLineageError: 404,
    ArtifactMissingError: 404,
    ArtifactRefusedError: 422,
    ArtifactTooLargeError: 413,
    ArtifactsUnavailableError: 503,
    LedgerError: 503,
    BrokenChainError: 503,
    RecordError: 503,
    HeadsDifferError: 503,
    DifferenceChangedError: 409,
    TopicError: 503,
    ExemplarMemoryError: 409,
    UnknownExemplarError: 404,
    UnknownClusterError: 404,
    SandboxUnavailableError: 503,
    CropsMissingError: 404,
    CropsUnavailableError: 503,
    StoreUnavailableError: 503,
    IndexBusyError: 503,
    AccessError: 503,
    TokenError: 409,
    UnknownTokenError: 404,
}

_health = APIRouter(route_class=GuardedRoute)


@_health.get("/healthz", tags=["status"], openapi_extra=anyone())
def healthz() -> dict[str, str]:
    """Whether the process answers; says nothing about Kafka (see /status)."""
    return {"status": "ok"}


_ROUTERS = (
    releases.router,
    rollouts.router,
    accuracy.router,
    notices.router,
    clusters.router,
    memory.router,
    purge.router,
    label_studio.router,
    lineage.router,
    record.router,
    status.router,
    access.router,
    _health,
)
_described = HTTPBearer(auto_error=False, description="a token; none where no person has one")


class _App(FastAPI):
    def build_middleware_stack(self) -> ASGIApp:
        return TooLargeMiddleware(super().build_middleware_stack(), _too_large)


async def _too_large(request: Request, reason: str) -> ASGIApp:
    return Secured(await run_in_threadpool(_refusal, request, reason, 413))


def create_app(settings: DeploySettings, services: Services) -> FastAPI:
    """The API over opened services; `services` stay open for as long as the app answers."""
    app = _App(
        title="Forgewatch deploy",
        version="0.1.0",
        description=DESCRIPTION,
        lifespan=collecting(services),
        max_body_size=MAX_BODY_BYTES,
        docs_url=None,  # those load scripts of a public network; deploy.page.docs does not
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.services = services
    app.state.access = services.access
    app.state.surroundings = ContextCache(partial(ask, settings, services, deque(maxlen=20_000)))
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(_described)])
    add_page(app)
    for kind, code in _STATUS.items():
        app.add_exception_handler(kind, _answer(code))
    return app


def _answer(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, ApprovalError | EvidenceError):
            metrics.REFUSALS.inc()
        log.warning("refused", method=request.method, path=request.scope["path"], why=str(error))
        return _refusal(request, str(error), status)

    return answer


def _refusal(request: Request, reason: str, status: int) -> Response:
    if is_page(request):
        return refuse(request, reason, status)
    return JSONResponse({"detail": reason}, status)


_INTERVAL_S = 3600.0


def collecting(services: Services) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The app's lifespan, in which the artifact store is looked through at the start and every hour."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(task(services)) for task in (_for_ever, _proving)]
        yield
        for task in tasks:
            task.cancel()

    return lifespan


async def _for_ever(services: Services) -> None:
    while True:
        await run_in_threadpool(collect, services)
        await asyncio.sleep(_INTERVAL_S)


_PROOF_INTERVAL_S, _PROOF_ROWS = 10.0, 1000
"""How often old rows of both chains are proven once more, and how many: 100,000 take 17 minutes."""


async def _proving(services: Services) -> None:
    while True:
        await asyncio.sleep(_PROOF_INTERVAL_S)
        await run_in_threadpool(prove_some, services)


def prove_some(services: Services, rows: int = _PROOF_ROWS) -> None:
    """Prove some old rows of the ledger and of the record once more; say where one was changed."""
    try:
        services.ledger.look_back(rows)
        services.record.prove()
        services.record.look_back(rows)
    except (LedgerError, RecordError, BrokenChainError) as error:
        log.error("a chain is not proven", error=str(error))


def collect(services: Services) -> None:
    """Remove from the artifact store what is old and named by no release of the ledger."""
    try:
        removed = services.artifacts.collect(replay(services.ledger.events()).releases)
    except (LedgerError, ArtifactsUnavailableError, OSError) as error:
        log.warning("artifacts not collected", error=str(error))
        return
    if removed:
        log.info("artifacts collected", removed=removed)
