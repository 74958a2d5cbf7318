"""A file that somebody drops gets the live release's verdict, and leaves nothing behind."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deploy.releases.ledger import Move
from deploy.server.services import Services
from detector.release.artifact import MANIFEST, Artifact
from updater.records import Candidate


def picture() -> bytes:
    encoded = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (200, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(encoded, "PNG")
    return encoded.getvalue()


def drop(page: Any, content: bytes, name: str = "a.png", **fields: str) -> Any:
    token = re.search('name="form_token" value="([0-9a-f]+)"', page.get("/page/try").text)
    assert token is not None
    return page.post("/page/try", data={"form_token": token[1], **fields}, files={"file": (name, content)})


@pytest.fixture
def live(
    services: Services,
    untrained_artifact: Artifact,
    candidate_of: Callable[[Artifact], Candidate],
    monkeypatch: pytest.MonkeyPatch,
) -> Artifact:
    """A real, if untrained, release that is live."""
    monkeypatch.setattr(services.artifacts, "_max_file_bytes", 2**30)
    artifact = untrained_artifact
    for name in (*artifact.manifest.files, MANIFEST):
        with services.artifacts.upload(artifact.digest, name) as upload:
            upload.write((artifact.folder / name).read_bytes())
            upload.commit()
    candidate = candidate_of(artifact)
    named = artifact.digest, candidate.evaluation_digest
    services.ledger.append(
        lambda history: [
            Move("updater", "propose", *named, candidate=candidate),
            Move("ada", "approve", *named),
            Move("ada", "promote", *named),
        ]
    )
    return artifact


@pytest.mark.slow
def test_a_picture_gets_a_verdict_in_words_and_nothing_of_it_is_kept(
    page: Any, live: Artifact, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    shown = drop(page, picture(), "<b>\u202e.png", source="camera")
    assert shown.status_code == 200, shown.text
    assert "160 × 200" in shown.text
    assert live.version in shown.text
    assert "Unknown score" in shown.text
    assert str(tmp_path) not in drop(page, picture(), "a.png").text
    assert "&lt;b&gt;" in shown.text
    assert "\u202e" not in shown.text
    assert [path.name for path in (tmp_path / "t").iterdir() if path.name.startswith("try-")] == []
    for content, why in ((b"\xff\xd8 no picture", "decod|format|identif"), (b"", "it is empty")):
        refused = drop(page, content, "x.jpg")
        assert refused.status_code == 422
        assert re.search(why, refused.text)
    with services.memory.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM exemplars").scalar() == 0


def test_where_nothing_is_live_it_says_so(page: Any) -> None:
    refused = drop(page, picture())
    assert (refused.status_code, "nothing is live yet" in refused.text) == (409, True)
