"""The deploy server: releases, artifacts, the memory's clusters and labels, updates, over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware

from deploy.lineage.onward import UnknownLineageError
from deploy.page.app import add_page, is_page, refused
from deploy.record.record import RecordError
from deploy.releases import metrics
from deploy.releases.approval import ApprovalError, UnknownReleaseError, fold
from deploy.releases.artifacts import (
    ArtifactMissingError,
    ArtifactRefusedError,
    ArtifactsUnavailableError,
    ArtifactTooLargeError,
)
from deploy.releases.evidence import EvidenceError
from deploy.releases.ledger import LedgerError
from deploy.server import lineage, memory, record, releases, status
from deploy.server.services import LOOPBACK_NAMES, Services, authorised
from deploy.settings import DeploySettings
from ingest.sandbox.sandbox import SandboxUnavailableError
from memory.clusters.review import UnknownClusterError
from memory.crops.crop_store import CropsMissingError, CropsUnavailableError
from memory.rows import UnknownExemplarError
from memory.store import ExemplarMemoryError, StoreUnavailableError

log = structlog.get_logger()

DESCRIPTION = """\
Everything that an operator does with Forgewatch goes through here: look at what was rejected as
unknown, name it, ask for an update, see its evidence, approve or reject it, roll back.

Give who you are in `X-Forgewatch-Actor` with everything that changes something: it is put on record.
Where the server has a token, send it as a bearer token with every request but `/healthz`.
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
    RecordError: 503,
    ExemplarMemoryError: 409,
    UnknownExemplarError: 404,
    UnknownClusterError: 404,
    SandboxUnavailableError: 503,
    CropsMissingError: 404,
    CropsUnavailableError: 503,
    StoreUnavailableError: 503,
}


def create_app(settings: DeploySettings, services: Services) -> FastAPI:
    """The API over opened services; `services` stay open for as long as the app answers."""
    app = FastAPI(
        title="Forgewatch deploy", version="0.1.0", description=DESCRIPTION, lifespan=collecting(services)
    )
    app.state.settings = settings
    app.state.services = services
    if settings.token is None:
        # A page of another origin whose name was made to resolve to loopback is no loopback caller.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK_NAMES))
    for router in (releases.router, memory.router, lineage.router, record.router, status.router):
        app.include_router(router, dependencies=[Depends(authorised)])

    @app.get("/healthz", tags=["status"])
    def healthz() -> dict[str, str]:
        """Whether the process answers; says nothing about Kafka (see /status)."""
        return {"status": "ok"}

    add_page(app)
    for kind, code in _STATUS.items():
        app.add_exception_handler(kind, _answer(code))
    return app


def _answer(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, ApprovalError | EvidenceError):
            metrics.REFUSALS.inc()
        log.warning("refused", method=request.method, path=request.url.path, why=str(error))
        if is_page(request):
            return refused(request, str(error), status)
        return JSONResponse({"detail": str(error)}, status)

    return answer


_INTERVAL_S = 3600.0


def collecting(services: Services) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The app's lifespan, in which the artifact store is looked through at the start and every hour."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_for_ever(services))
        yield
        task.cancel()

    return lifespan


async def _for_ever(services: Services) -> None:
    while True:
        await run_in_threadpool(collect, services)
        await asyncio.sleep(_INTERVAL_S)


def collect(services: Services) -> None:
    """Remove from the artifact store what is old and named by no release of the ledger."""
    try:
        removed = services.artifacts.collect(fold(services.ledger.events()).releases)
    except (LedgerError, ArtifactsUnavailableError, OSError) as error:
        log.warning("artifacts not collected", error=str(error))
        return
    if removed:
        log.info("artifacts collected", removed=removed)
