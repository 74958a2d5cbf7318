"""The deploy server: releases, artifacts, the memory's clusters and labels, updates, over HTTP."""

import sys
from collections.abc import Callable

import structlog
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import start_http_server
from starlette.middleware.trustedhost import TrustedHostMiddleware

from deploy.environment import SettingsWrong, settings_problems
from deploy.releases import metrics
from deploy.releases.approval import ApprovalError, UnknownRelease
from deploy.releases.artifacts import ArtifactMissing, ArtifactRefused, ArtifactTooLarge
from deploy.releases.ledger import LedgerError
from deploy.server import imports, memory, releases, status, updates
from deploy.server.access import (
    LOOPBACK_NAMES,
    InsecureSettings,
    authorised,
    refuse_insecure,
)
from deploy.server.services import Services, ServicesError, open_services
from deploy.settings import DeploySettings
from ingest.sandbox import SandboxUnavailableError
from memory.crop_store import CropsMissingError, CropsUnavailableError
from memory.review import UnknownClusterError
from memory.rows import UnknownExemplarError
from memory.store import ExemplarMemoryError, StoreUnavailableError

log = structlog.get_logger(__name__)

DESCRIPTION = """\
Everything that an operator does with Forgewatch goes through here: look at what was rejected as
unknown, name it, ask for an update, see its evidence, approve or reject it, roll back.

Give who you are in `X-Forgewatch-Actor` with everything that changes something: it is put on record.
Where the server has a token, send it as a bearer token with every request but `/healthz`.
"""

# The nearest class of an error's own decides, whatever the order here.
_STATUS: dict[type[Exception], int] = {
    ApprovalError: 409,
    UnknownRelease: 404,
    ArtifactMissing: 404,
    ArtifactRefused: 422,
    ArtifactTooLarge: 413,
    LedgerError: 503,
    ExemplarMemoryError: 409,
    UnknownExemplarError: 404,
    UnknownClusterError: 404,
    SandboxUnavailableError: 503,
    CropsMissingError: 404,
    CropsUnavailableError: 503,
    StoreUnavailableError: 503,
}


def create_app(settings: DeploySettings, parts: Services) -> FastAPI:
    """The API over opened services; `parts` stay open for as long as the app answers."""
    app = FastAPI(title="Forgewatch deploy", version="0.1.0", description=DESCRIPTION)
    app.state.settings = settings
    app.state.services = parts
    if settings.token is None:
        # A page of another origin whose name was made to resolve to loopback is no loopback caller.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK_NAMES))
    for router in (releases.router, memory.router, imports.router, status.router, updates.router):
        app.include_router(router, dependencies=[Depends(authorised)])

    @app.get("/healthz", tags=["status"])
    def healthz() -> dict[str, str]:
        """Whether the process answers; says nothing about Kafka (see /status)."""
        return {"status": "ok"}

    for kind, code in _STATUS.items():
        app.add_exception_handler(kind, _answer(code))
    return app


def main() -> int:
    """Run the server until it is told to end. Returns the process's exit code."""
    try:
        settings = DeploySettings()
        refuse_insecure(settings)
        with open_services(settings) as parts:
            metrics.show(parts.ledger.events())
            start_http_server(settings.metrics_port, settings.metrics_host)
            with parts.publisher:
                log.info("deploy server starts", host=settings.host, port=settings.port)
                uvicorn.run(
                    create_app(settings, parts),
                    host=settings.host,
                    port=settings.port,
                    log_config=None,
                    access_log=False,
                    server_header=False,
                )
    except SettingsWrong as error:
        return _complain(*settings_problems(error))
    except (InsecureSettings, ServicesError, LedgerError, OSError) as error:
        return _complain(str(error))
    return 0


def _answer(status: int) -> Callable[[Request, Exception], JSONResponse]:
    def answer(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, ApprovalError):
            metrics.REFUSALS.inc()
        log.warning("refused", method=request.method, path=request.url.path, why=str(error))
        return JSONResponse({"detail": str(error)}, status)

    return answer


def _complain(*lines: str) -> int:
    for line in lines:
        print(line, file=sys.stderr)  # noqa: T201 - it is what the person who started it sees
    return 2
