"""The certificates by which signers of credentials are trusted, in a PEM file that may change at any time."""

from pathlib import Path

import structlog
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificates

log = structlog.get_logger()


class TrustAnchorsError(Exception):
    """The file holds no certificates."""


class TrustAnchors:
    """Gives the certificates of a file as PEM, empty without a file; what is put in its place counts at once.

    A later file that cannot be read is logged once, and the certificates before stay. Raises
    TrustAnchorsError for the first one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._changed_ns, self._pem = path, self._stamp(path), _read(path) if path else ""

    def __call__(self) -> str:
        if self._path and (changed_ns := self._stamp(self._path)) != self._changed_ns:
            self._changed_ns = changed_ns
            try:
                self._pem = _read(self._path)
            except TrustAnchorsError as error:
                log.error("the trust anchors before stay", error=str(error))
        return self._pem

    @staticmethod
    def _stamp(path: Path | None) -> int:
        try:
            return path.stat().st_mtime_ns if path else 0
        except OSError:
            return 0


def _read(path: Path) -> str:
    try:
        certificates = load_pem_x509_certificates(path.read_bytes())
        return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)
    except OSError as error:
        raise TrustAnchorsError(f"the trust anchors {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TrustAnchorsError(f"the trust anchors {path} are no PEM file of certificates") from error
