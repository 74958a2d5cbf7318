"""Releases' evaluations, believed only where their bytes are those that were proposed."""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache

from pydantic import ValidationError

from deploy.release_records import Release
from deploy.releases.evidence import EvidenceError
from updater.candidate.report import figures
from updater.evaluation_parts import Measure
from updater.records import Evaluation

_KEPT, _KEPT_FIGURES = 64, 10_000
"""evaluations that are kept parsed, some 100 kB each, and figures, some 1 kB"""


class Evaluations:
    """Reads evaluations. What has a digest never changes, so the last ones are kept."""

    def __init__(self, stored: Callable[[str], bytes]) -> None:
        """stored: gives the bytes of a release's evaluation.json, by the release's digest."""
        self._stored = stored
        self._read = lru_cache(_KEPT)(self._read_anew)
        self._figures = lru_cache(_KEPT_FIGURES)(lambda *digests: figures(self._read(*digests)))

    def of(self, release: Release) -> Evaluation:
        """Return a release's evaluation.

        Raises EvidenceError where it is not the one that was proposed, and what `stored` raises.
        """
        return self._read(release.digest, release.candidate.evaluation_digest)

    def figures_of(self, release: Release) -> Mapping[Measure, float]:
        """Return what a release was measured at. Raises what `of` raises."""
        return self._figures(release.digest, release.candidate.evaluation_digest)

    def _read_anew(self, digest: str, evaluation_digest: str) -> Evaluation:
        data = self._stored(digest)
        if hashlib.sha256(data).hexdigest() != evaluation_digest:
            raise EvidenceError(f"the stored evaluation of {digest} is not the one that was proposed")
        try:
            return Evaluation.model_validate_json(data)
        except ValidationError as error:
            raise EvidenceError(f"the evaluation of {digest} is none: {error.errors()[0]['msg']}") from error
