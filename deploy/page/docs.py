"""The API's documentation: every operation, from its OpenAPI document, on a page of this server alone."""

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, PlainTextResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import RULE, anyone
from deploy.page.render import render

router = APIRouter(route_class=GuardedRoute)
_IN_IMAGES = Path(sys.prefix) / "share" / "forgewatch" / "runbooks"
_RUNBOOKS = _IN_IMAGES if _IN_IMAGES.is_dir() else Path(__file__).parents[2] / "helm/forgewatch/runbooks"


@router.get("/runbooks/{name}.md", response_class=PlainTextResponse, openapi_extra=anyone())
def get_runbook(name: str) -> PlainTextResponse:
    """What to do about an alert, of which the annotation `runbook_url` leads here."""
    pages = {path.stem: path for path in _RUNBOOKS.glob("*.md")}
    if name not in pages:
        raise HTTPException(404, f"no runbook is called {name[:100]}")
    return PlainTextResponse(pages[name].read_text())


@router.get("/docs", response_class=HTMLResponse, openapi_extra=anyone())
def get_docs(request: Request) -> HTMLResponse:
    """What the API does, who may call what, and where its OpenAPI document is."""
    described = request.app.openapi()
    operations = [
        _operation(path, method, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    operations.sort(key=lambda operation: (operation["tag"], operation["path"], operation["method"]))
    groups = [(tag, list(of)) for tag, of in groupby(operations, key=lambda operation: operation["tag"])]
    context = {"about": described["info"]["description"], "groups": groups}
    return render(request, "docs.html.j2", context)


def _operation(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "method": method.upper(),
        "tag": operation["tags"][0],
        "text": operation.get("description", ""),
        "roles": operation[RULE],
        "parameters": [(p["name"], p.get("description", "")) for p in operation.get("parameters", ())],
    }
