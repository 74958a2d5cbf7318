"""Scoring files without Kafka, by the same steps as the stream's."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.client.connection import ClientError
from deploy.client.http import Client
from deploy.client.kafka import event_headers
from deploy.client.pictures import refusal
from deploy.settings import DeploySettings
from detector.batch import judge, open_batch
from detector.records import Verdict
from detector.release.artifact import Artifact
from detector.release.crop_graphs import map_problem
from detector.release.manifest import ArtifactError
from detector.release.tensors import ModelOutput, Request
from detector.second_look import run_second_pass, second_looks
from detector.serving.rollout import Route
from detector.serving.rollout_source import FetchError, fetch
from detector.serving.session import ReleaseSession
from detector.settings import DetectorSettings
from detector.unknowns import MAX_MESSAGE_BYTES
from detector.verdicts import JudgedItem
from ingest.records import CropPlan, Decoded, InRecord, MediaPlan, PicturePlan
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings
from ingest.trust_anchors import TrustAnchors, TrustAnchorsError
from updater.limited_session import LimitedSession

_SHOWN, _SHOWN_PX = "shown", 1024
_FRAMES, _FRAME_PX = 8, 160
"""of a video, shown small"""


class ScoringError(ClientError):
    """There is nothing to score by: no release, or no sandbox; the text says why. Retryable."""


class NoVerdictError(Exception):
    """The stream would write a dead letter for this file; the text says why. Fatal for the file."""


class Scorer:
    """One release, in this process where it is given no session, and the sandbox that decodes for it."""

    def __init__(
        self,
        artifact: Artifact,
        sandbox: Sandbox,
        settings: IngestSettings,
        detector: DetectorSettings,
        session: LimitedSession | None = None,
    ) -> None:
        self._artifact = artifact
        self._sandbox = sandbox
        # What would come by claim check comes in the record here.
        self._settings = settings.model_copy(update={"max_media_bytes": settings.max_fetched_bytes})
        self._detector = detector
        self._session = session or ReleaseSession(artifact, detector.model_threads)
        self._count = 0

    def score(self, path: Path, *, dense: bool = False, source: str | None = None) -> Verdict:
        """The verdict on one file: as the stream's but for id, position and timings.

        dense: with a map also where it is called real. source: that it is judged as one of. It goes as the
        record that `forgewatch send` would make through the worker's own steps; its position is its place
        among the files scored here. Raises NoVerdictError, and OSError where the file cannot be read.
        """
        limit = self._settings.max_media_bytes
        if path.stat().st_size > limit:
            raise NoVerdictError(f"{path}: {refusal('too_large', f'more than {limit} bytes')}")
        record = InRecord(
            topic="file",
            partition=0,
            offset=self._count,
            timestamp_ms=time.time_ns() // 1_000_000,
            key=None,
            value=path.read_bytes(),
            headers=tuple(event_headers(path.resolve(), source=source)),
        )
        self._count += 1
        batch = open_batch([record], Route(self._artifact), self._sandbox, self._settings)
        detector = self._detector
        again = partial(self._again, dense=dense)
        (judged,) = judge(batch, self._model, detector, MAX_MESSAGE_BYTES, again=again)
        if judged.verdict is None:
            assert judged.error is not None
            raise NoVerdictError(f"{path}: {refusal(judged.error.reason, str(judged.error))}")
        return judged.verdict

    @property
    def map_problem(self) -> str | None:
        """Why this release makes no maps; None: it makes them."""
        if (localizer := self._artifact.manifest.localizer) is None:
            return "the live release makes no maps: it has no localizer (updater/OPERATIONS.md says how)"
        return map_problem(localizer.reals_marked)

    @property
    def maps(self) -> bool:
        """Whether the release has what says where pictures are forged."""
        return self._artifact.manifest.localizer is not None

    @property
    def scans(self) -> bool:
        """Whether the release says when videos are forged."""
        return self._artifact.manifest.scanner is not None

    def picture(self, path: Path, verdict: Verdict) -> NDArray[np.uint8]:
        """Show the frame that a verdict's map is of, or the first, uint8 RGB with sides of at most 1,024 px.

        Raises DecodeError, and OSError where the file cannot be read.
        """
        decoded = self._decode_for_page(path, verdict, self._artifact.manifest.contract.crop_plan, _SHOWN_PX)
        place = decoded.frame_numbers.index(verdict.map.frame) if verdict.map else 0
        pixels: NDArray[np.uint8] = decoded.pictures[_SHOWN][place]
        return pixels

    def frames(self, path: Path, verdict: Verdict) -> list[NDArray[np.uint8]]:
        """Show some frames of a video, evenly spread, uint8 RGB with sides of at most 160 px.

        Raises as `picture`.
        """
        plan = CropPlan(crop_px=32, patches=1, face_patches=0, frames=_FRAMES)
        return list(self._decode_for_page(path, verdict, plan, _FRAME_PX).pictures[_SHOWN])

    def _decode_for_page(self, path: Path, verdict: Verdict, crops: CropPlan, most_px: int) -> Decoded:
        smaller = min(1.0, most_px / max(verdict.width, verdict.height))
        width_px, height_px = (max(1, round(side * smaller)) for side in (verdict.width, verdict.height))
        plan = MediaPlan(crops=crops, pictures={_SHOWN: PicturePlan(width_px=width_px, height_px=height_px)})
        return self._sandbox.submit(path.read_bytes(), plan).result()

    def _again(self, artifact: Artifact, seen: Sequence[JudgedItem], *, dense: bool) -> Sequence[JudgedItem]:
        looks = second_looks(artifact, self._session.score, also_real=dense)
        return run_second_pass(seen, looks, self._sandbox.submit)

    def _model(self, _artifact: Artifact, request: Request) -> ModelOutput:
        return self._session.score(request)


@contextmanager
def open_scorer(api: Client, digest: str | None = None) -> Iterator[Scorer]:
    """A scorer of a release, by default the live one. It is fetched once and verified at each start.

    Raises ScoringError, and the client's errors.
    """
    deploy, ingest, detector = DeploySettings(), IngestSettings(), DetectorSettings()
    if digest is None:
        rollout = api.rollout()
        if rollout is None:
            raise ScoringError("no release is live yet: approve one (`forgewatch releases`)")
        digest = rollout.stable
    where = detector.model_copy(update={"deploy_url": deploy.url, "deploy_token": deploy.token})
    try:
        artifact = fetch(digest, deploy.cache_dir, where)
    except (FetchError, ArtifactError) as error:
        raise ScoringError(f"the release cannot be fetched: {error}") from error
    try:
        with Sandbox(ingest, TrustAnchors(detector.c2pa_trust_file)) as sandbox:
            yield Scorer(artifact, sandbox, ingest, detector)
    except SandboxUnavailableError as error:
        raise ScoringError(f"media cannot be decoded here: {error}") from error
    except TrustAnchorsError as error:
        raise ScoringError(str(error)) from error
