"""A browser without a browser, and a memory with clusters, written as the memory's process would."""

import itertools
import json
import re
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from exemplars import make_exemplar
from fastapi.testclient import TestClient
from sqlalchemy import insert

from deploy.app import create_app
from deploy.release_records import Approve
from deploy.releases import approval
from deploy.releases.standing import replay
from deploy.rollouts import controller
from deploy.server import releases
from deploy.server.services import Services
from detector.records import Comparison, ReleaseVerdict, in_share
from detector.release.artifact import MANIFEST, Artifact
from detector.release.manifest import FEATURE_VERSION
from memory.records import Declared
from memory.rows import NewRow, insert_rows
from memory.schema import clusters


class Browser(TestClient):
    """Sends forms as a page has them: with where it comes from, and with the token that it bears."""

    def submit(self, path, **fields):
        """Send the form of this view."""
        held = re.search('name="form_token" value="([0-9a-f]+)"', self.get(path).text)
        assert held is not None
        return self.post(path, data={"form_token": held[1], **fields})


@pytest.fixture
def page(settings, services, monkeypatch):
    """What a browser sees."""
    monkeypatch.setattr("memory.index.shared_index._PATIENCE_S", 60)  # a busy machine
    base = "http://127.0.0.1:8700"
    with Browser(
        create_app(settings, services), base_url=base, headers={"Origin": base}, raise_server_exceptions=False
    ) as client:
        yield client


@pytest.fixture
def fill(services):

    def put(name, count, source="camera-7", place=0, declared=()):
        rng = np.random.default_rng(len(name) + count)
        ids = [f"forgewatch.media-{place}-{number}" for number in range(count)]
        with services.memory.write() as connection:
            files = itertools.chain(declared, itertools.repeat(Declared()))
            rows = [_row(services, each, source, rng, file) for each, file in zip(ids, files, strict=False)]
            insert_rows(connection, rows)
            row = {"id": name, "shown_ms": 0, "members": json.dumps(ids), "place": place, "spread": 1.0}
            connection.execute(insert(clusters).values(**row, unclustered=False))
        return ids

    return put


@pytest.fixture
def proposed(services, make_artifact, candidate_of):

    def propose(requested_by=None, **figures):
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


@dataclass
class OnTrial:
    """A rollout that goes on in these services, and the comparisons that are on its topic."""

    services: Services
    champion: Artifact
    challenger: Artifact
    written: list[tuple[bytes, list[tuple[str, bytes]], float]]
    began_s: float
    number: int
    slow: bool = False
    """the topic gives nothing yet"""

    def compare(self, champion, challenger, count, source="camera", **changes):
        """Let detectors write so many shared items of which both said this, one every 10 seconds."""
        shared = (n for n in itertools.count(self._items) if in_share(self._id(n), 0.25))
        for number in itertools.islice(shared, count):
            self._items = number + 1
            comparison = Comparison(
                id=self._id(number),
                source=source,
                digest="0" * 64,
                rollout=self.number,
                champion=said(self.champion.digest, champion),
                challenger=said(self.challenger.digest, challenger),
                answered="champion",
                **changes,
            )
            at_s = self.began_s + 10.0 * len(self.written)
            self.written.append((comparison.model_dump_json().encode(), [], at_s))
        self.services.controller.tick()

    _items: int = 0

    def _id(self, number):
        return f"{self.services.ingest.media_topic}-0-{number}"


def said(release, what):
    if what == "error":
        return ReleaseVerdict(release=release, error="it does not answer", model_s=0.1)
    label = what if what in ("real", "unknown") else "fake"
    family = what if label == "fake" else None
    sure = 0.95 if family else 0.1
    return ReleaseVerdict(
        release=release,
        label=label,
        family=family,
        fake_probability=sure,
        energy=-1.0,
        unknown_score=0.0,
        model_s=0.1,
    )


@pytest.fixture
def begin_rollout(services, monkeypatch):
    """Begins the rollout of a proposed release against the live one."""

    def begin(champion, challenger):
        approve(services, challenger)
        began = replay(services.ledger.events()).trial
        assert began is not None
        trial = OnTrial(services, champion, challenger, [], began.began.timestamp(), began.number)
        later = SimpleNamespace(time=lambda: trial.began_s + 100_000)  # what is written lies before
        monkeypatch.setattr(controller, "time", later)
        monkeypatch.setattr(controller, "TopicReader", partial(_Topic, trial))
        services.controller.tick()
        return trial

    return begin


@pytest.fixture
def on_trial(services, proposed, begin_rollout):
    """A rollout in shadow, of a release that learnt `resampled` and that ann asked for."""
    champion = proposed()
    approve(services, champion)
    return begin_rollout(champion, proposed("ann", parent=champion, new=("resampled",)))


def approve(services, artifact, plan="25,5,25,100"):
    """Approve a release, by a plan with steps unless told; the first is live then."""
    candidate = replay(services.ledger.events()).releases[artifact.digest].candidate
    accept = {finding.name: "known" for finding in candidate.findings}
    wanted = Approve(evaluation_digest=candidate.evaluation_digest, accept=accept, plan=plan)
    releases.approve(services, "bea", artifact.digest, wanted)


class _Topic:
    """The reader of a topic that lies in memory."""

    def __init__(self, trial, *_):
        self._trial, self._next = trial, 0

    def poll(self):
        new = [] if self._trial.slow else self._trial.written[self._next :]
        self._next += len(new)
        return iter(new)

    def has_item(self, id):
        return True

    def read_until(self, now_s):
        ended_s = self._trial.began_s + 10.0 * self._next + 2  # all units before have ended
        return ended_s, not self._trial.slow

    def close(self): ...


def _row(services, name, source, rng, declared):
    crops = rng.integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    own = {"id": name, "group": name, "source": source, "crops_digest": services.crops.put(crops)}
    media = {"media_digest": rng.bytes(32).hex(), "release": "a" * 64}
    exemplar = make_exemplar(0, **own, **media, **dict(declared))
    return NewRow(exemplar, 1, rng.normal(size=8).astype(np.float32), FEATURE_VERSION, None, None)
