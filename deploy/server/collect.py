"""Artifacts that nobody names, and uploads that nobody finished, are removed while the server runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from deploy.releases.approval import fold
from deploy.releases.artifacts import ArtifactsUnavailableError
from deploy.releases.ledger import LedgerError
from deploy.server.services import Services

_INTERVAL_S = 3600.0

log = structlog.get_logger(__name__)


def collecting(parts: Services) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The app's lifespan, in which the artifact store is looked through at the start and every hour."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_for_ever(parts))
        yield
        task.cancel()

    return lifespan


async def _for_ever(parts: Services) -> None:
    while True:
        await run_in_threadpool(collect, parts)
        await asyncio.sleep(_INTERVAL_S)


def collect(parts: Services) -> None:
    """Remove from the artifact store what is old and named by no release of the ledger."""
    try:
        removed = parts.artifacts.collect(fold(parts.ledger.events()).releases)
    except (LedgerError, ArtifactsUnavailableError, OSError) as error:
        log.warning("artifacts not collected", error=str(error))
        return
    if removed:
        log.info("artifacts collected", removed=removed)
