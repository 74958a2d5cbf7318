"""What a store of release artifacts takes and refuses: one folder a digest, complete and verified, or none.

There are two: of a folder (artifact_folder) and of an object store (artifact_bucket).
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.releases.evidence import Evidence
from detector.release.artifact import EVALUATION, FILES, verify
from detector.release.manifest import ArtifactError

KEPT_S = 24 * 3600
"""Seconds that an unfinished upload, or an artifact that no release names, is kept after its last use."""

PIECE_BYTES = 2**22
"""So much of a file is read at once."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class StoreError(Exception):
    """The store does not do this; fatal for the request."""


class ArtifactMissingError(StoreError):
    """No complete artifact of this digest, or no such file in it."""


class ArtifactRefusedError(StoreError):
    """A digest or file name that is none, or bytes that are not what the manifest says."""


class ArtifactTooLargeError(StoreError):
    """A file over the limit."""


class ArtifactsUnavailableError(StoreError):
    """Where the artifacts lie cannot be read or written now; retryable."""


@dataclass(frozen=True)
class Stored:
    """One file of an artifact: how many bytes it has, and its pieces in order."""

    size: int
    pieces: Iterator[bytes]


def check_name(digest: str, name: str) -> None:
    """Raise ArtifactRefusedError where one is no digest, or the other no name of an artifact's file."""
    if not is_digest(digest):
        raise ArtifactRefusedError("a digest is 64 hexadecimal digits in lower case")
    if name not in FILES:
        raise ArtifactRefusedError(f"an artifact has no such file; it may have {', '.join(sorted(FILES))}")


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 as artifacts are named by."""
    return _DIGEST.fullmatch(text) is not None


def require_room(size: int, max_bytes: int) -> None:
    """Raise ArtifactTooLargeError where a file has more bytes than it may."""
    if size > max_bytes:
        raise ArtifactTooLargeError(f"a file has at most {max_bytes} bytes")


def evidence_in(folder: Path, digest: str) -> Evidence:
    """Read every byte of an artifact in a folder. Raises ArtifactRefusedError where one is not as it was."""
    try:
        artifact = verify(folder)
        evaluation = (folder / EVALUATION).read_bytes()
    except (ArtifactError, OSError) as error:
        raise ArtifactRefusedError(f"artifact {digest} is damaged: {error}") from error
    return Evidence(
        artifact.digest,
        hashlib.sha256(evaluation).hexdigest(),
        artifact.manifest.parent,
        artifact.manifest.classes,
        evaluation,
    )
