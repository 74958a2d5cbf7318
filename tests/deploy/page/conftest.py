"""A browser without a browser, and a memory with clusters, written as the memory's process would."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import insert

from deploy.app import create_app
from deploy.releases import approval
from deploy.server.services import Services
from deploy.settings import DeploySettings
from detector.release.artifact import MANIFEST, Artifact
from memory.records import Exemplar
from memory.rows import NewRow, insert_rows
from memory.schema import clusters
from updater.records import Candidate

Fill = Callable[..., list[str]]


class Browser(TestClient):
    """Sends forms as a page has them: with where it comes from, and with the token that it bears."""

    def submit(self, path: str, **fields: Any) -> Response:
        """Send the form of this view."""
        held = re.search('name="form_token" value="([0-9a-f]+)"', self.get(path).text)
        assert held is not None
        return self.post(path, data={"form_token": held[1], **fields})


@pytest.fixture
def page(settings: DeploySettings, services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """What a browser sees."""
    monkeypatch.setattr("memory.index.shared_index._PATIENCE_S", 60)  # a busy machine
    base = "http://127.0.0.1:8700"
    with Browser(
        create_app(settings, services),
        base_url=base,
        headers={"Origin": base},
        raise_server_exceptions=False,
    ) as client:
        yield client


@pytest.fixture
def fill(services: Services) -> Fill:
    """Puts a cluster of unknown items into the memory; returns their ids."""

    def put(name: str, count: int, source: str = "camera-7", place: int = 0) -> list[str]:
        rng = np.random.default_rng(len(name) + count)
        ids = [f"forgewatch.media-{place}-{number}" for number in range(count)]
        with services.memory.write() as connection:
            insert_rows(connection, [_row(services, each, source, rng) for each in ids])
            row = {"id": name, "shown_ms": 0, "members": json.dumps(ids), "place": place, "spread": 1.0}
            connection.execute(insert(clusters).values(**row, unclustered=False))
        return ids

    return put


@pytest.fixture
def proposed(
    services: Services, make_artifact: Callable[..., Artifact], candidate_of: Callable[..., Candidate]
) -> Callable[..., Artifact]:
    """Proposes an artifact as the updater would."""

    def propose(requested_by: str | None = None, **figures: Any) -> Artifact:
        artifact = make_artifact(**figures)
        for name in (*artifact.manifest.files, MANIFEST):
            with services.artifacts.upload(artifact.digest, name) as upload:
                upload.write((artifact.folder / name).read_bytes())
                upload.commit()
        candidate, evidence = candidate_of(artifact), services.artifacts.evidence(artifact.digest)
        services.ledger.append(
            lambda history: approval.propose(
                history, candidate, evidence, services.updater, "updater", requested_by
            )
        )
        return artifact

    return propose


def _row(services: Services, name: str, source: str, rng: np.random.Generator) -> NewRow:
    crops = rng.integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    exemplar = Exemplar(
        id=name,
        media_digest=rng.bytes(32).hex(),
        crops_digest=services.crops.put(crops),
        source=source,
        group=name,
        shelf="unknown",
        family=None,
        split=None,
        release="a" * 64,
        unknown_score=4.2,
        received_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return NewRow(exemplar, 1, rng.normal(size=8).astype(np.float32), "2", None, None)
