"""The API's part about updates: ask for one, follow it."""

import secrets
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, HTTPException, Query

from deploy.server.access import Actor
from deploy.server.services import Services, services
from updater.records import UpdateRun

log = structlog.get_logger()
router = APIRouter()

Parts = Annotated[Services, Depends(services)]


@router.post("/updates", tags=["updates"], status_code=202)
def request_update(parts: Parts, actor: Actor) -> UpdateRun:
    """Ask for an update now. A runner takes it up; follow it at /updates/{id}."""
    run, _ = parts.runs.request(f"manual/{secrets.token_hex(8)}", "manual", actor)
    log.info("update requested", run=run.id, actor=actor)
    return run


@router.get("/updates", tags=["updates"])
def list_updates(parts: Parts, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> list[UpdateRun]:
    """Update runs, the newest first."""
    return parts.runs.newest(limit)


@router.get("/updates/{run}", tags=["updates"])
def get_update(parts: Parts, run: int) -> UpdateRun:
    """One update run: its state, stage and progress, and why it ended as it did."""
    try:
        return parts.runs.get(run)
    except KeyError as error:
        raise HTTPException(404, f"no update {run}") from error
