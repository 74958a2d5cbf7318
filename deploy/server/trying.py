"""A file is scored by the live release, in a child of this process; nothing of it is kept."""

import secrets
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deploy.client.pictures import draw_map
from deploy.releases.artifacts import ArtifactStore
from deploy.server.pictures import whole
from detector.records import Verdict
from detector.settings import DetectorSettings
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from ingest.trust_anchors import TrustAnchors, TrustAnchorsError
from updater.limited_session import LimitedSession

if TYPE_CHECKING:
    from deploy.client.scoring import Scorer

MAX_BYTES = 2**26
"""Of a file that somebody tries."""

_WAIT_S = 20.0

_PICTURES, _PICTURES_S = 48, 300.0
"""Pictures of what was tried last that stay in this process, and for how long."""


@dataclass(frozen=True)
class Tried:
    """A verdict, the names of its pictures by their titles, and why one is left out."""

    verdict: Verdict
    pictures: Mapping[str, str]
    left_out: str | None = None


class TryError(Exception):
    """The file has no verdict: another is being scored, nothing is live, or it is none that can be scored."""


class TrialScorer:
    """Scores one file at a time. The release is brought here at the first; a later one takes its place."""

    def __init__(self, artifacts: ArtifactStore, ingest: IngestSettings, detector: DetectorSettings) -> None:
        self._artifacts, self._ingest, self._detector = artifacts, ingest, detector
        self._one_at_a_time = threading.Lock()
        self._opened, self._folder = ExitStack(), ExitStack()
        self._sandbox: Sandbox | None = None
        self._scorer: tuple[str, Scorer] | None = None
        self._pictures: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def close(self) -> None:
        with self._one_at_a_time:
            self._folder.close()
            self._opened.close()

    def picture(self, name: str) -> bytes | None:
        """Return a picture of what was tried, PNG; None where it is gone."""
        made_s, png = self._pictures.get(name, (-_PICTURES_S, None))
        return png if time.monotonic() - made_s < _PICTURES_S else None

    def _keep(self, png: bytes) -> str:
        name = secrets.token_urlsafe(16)
        self._pictures[name] = time.monotonic(), png
        while len(self._pictures) > _PICTURES:
            self._pictures.popitem(last=False)
        return name

    def score(self, content: bytes, suffix: str, digest: str, source: str | None) -> Tried:
        """Return the verdict of a release on a file's bytes. suffix: of its name, such as `.png`.

        Raises TryError, StoreError, SandboxUnavailableError.
        """
        from deploy.client.scoring import NoVerdictError

        if not self._one_at_a_time.acquire(timeout=_WAIT_S):
            raise TryError("other files are being scored: try again in a while")
        try:
            scorer = self._of(digest)
            with tempfile.TemporaryDirectory(prefix="try-") as folder:
                path = Path(folder) / f"file{suffix}"
                path.write_bytes(content)
                verdict = scorer.score(path, source=source)
                base = scorer.picture(path, verdict)
                pictures = {"The picture" if verdict.kind == "image" else "A frame": self._keep(whole(base))}
                problem = scorer.map_problem if scorer.maps and verdict.label != "real" else None
                if verdict.map:
                    pictures["Where it seems forged"] = self._keep(
                        whole(np.asarray(draw_map(base, verdict.width, verdict.map)))
                    )
                return Tried(verdict, pictures, problem)
        except NoVerdictError as error:
            raise TryError(str(error).partition(": ")[2]) from error
        except TrustAnchorsError as error:
            raise TryError(str(error)) from error
        finally:
            self._one_at_a_time.release()

    def _of(self, digest: str) -> "Scorer":
        # ONNX Runtime takes memory and time to load, and a server on which nobody tries does without it.
        from deploy.client.scoring import Scorer

        if self._scorer is None or self._scorer[0] != digest:
            if self._sandbox is None:
                anchors = TrustAnchors(self._detector.c2pa_trust_file)
                self._sandbox = self._opened.enter_context(Sandbox(self._ingest, anchors))
            self._scorer = None
            self._folder.close()
            folder = Path(self._folder.enter_context(tempfile.TemporaryDirectory(prefix="release-")))
            artifact = self._artifacts.fetch(digest, folder)
            session = LimitedSession(artifact, self._detector.model_threads)
            self._folder.callback(session.close)
            self._scorer = digest, Scorer(artifact, self._sandbox, self._ingest, self._detector, session)
        return self._scorer[1]
