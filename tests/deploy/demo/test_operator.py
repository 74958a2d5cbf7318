"""The demonstration's operator against a real server, and a memory that computes beside it."""

import threading
from datetime import UTC, datetime
from functools import partial

import numpy as np
from rich.console import Console

from deploy.demo.operator import Operator
from deploy.server.services import Services
from memory.clusters.clustering import keep_clustered
from memory.clusters.review import list_clusters
from memory.records import Exemplar
from memory.rows import NewRow, insert_rows


def unknown(number: int) -> NewRow:
    return NewRow(
        exemplar=Exemplar(
            id=f"media-0-{number}",
            media_digest=f"{number:064x}",
            crops_digest=f"{number:064x}",
            source="camera",
            group=f"media-0-{number}",
            shelf="unknown",
            family=None,
            split=None,
            release=None,
            unknown_score=None,
            received_at=datetime.now(UTC),
        ),
        crop_count=1,
        features=np.random.default_rng(number).normal(size=9).astype(np.float32),
        feature_version="1",
        embedding=None,
        verdict=None,
    )


def test_the_operator_looks_when_every_unknown_is_remembered_and_clustered(
    served: str, services: Services
) -> None:
    operator = Operator(Console(quiet=True), {"FORGEWATCH_DEPLOY_URL": served})
    waiting = threading.Thread(target=partial(operator.await_clustered, 12))
    waiting.start()
    for numbers in (range(4), range(4, 12)):
        waiting.join(0.5)
        assert waiting.is_alive()
        with services.memory.write() as connection:
            insert_rows(connection, [unknown(number) for number in numbers])
    waiting.join(0.5)
    assert waiting.is_alive()
    stop = threading.Event()
    memory = threading.Thread(target=keep_clustered, args=(services.memory_settings, stop))
    memory.start()
    waiting.join(60)
    stop.set()
    memory.join(60)
    assert not waiting.is_alive()
    assert sum(len(one.members) for one in list_clusters(services.memory)) == 12
