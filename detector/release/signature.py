"""A release's signature: one more file beside the artifact's, by model-signing in key mode, offline.

The updater has a private key. Whoever uses a release has a PEM file of certificates. Each is read as a public
key with dates, whoever issued it: key mode itself knows no expiry.
"""

import base64
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from detector.release.artifact import MANIFEST, SIGNATURE, Artifact, verify
from detector.release.manifest import ArtifactError
from ingest.durable import write_durably

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from model_signing.hashing import Config

# model-signing takes a second and 40 MB to import: only functions that sign or verify do.

_MAX_BYTES = 2**18
"""Of a signature: it has some hundred bytes a file."""

_CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""What model-signing takes in key mode."""

_NO_KEY = "is no private key of the curve P-256, P-384 or P-521, without a password"


class SignatureError(ArtifactError):
    """The release is not signed by a key that is trusted now. Fatal: sign it, or trust its signer."""


class SigningKeyError(Exception):
    """The file is no private key that can sign."""


class SignersError(ArtifactError):
    """The file holds no certificates of keys that can sign; nothing is trusted meanwhile."""


def check_key(key: Path) -> None:
    """Raise SigningKeyError unless the PEM file holds a private key that `sign` takes."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        raise SigningKeyError(f"the signing key {key} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise SigningKeyError(f"the signing key {key} {_NO_KEY}") from error
    if not isinstance(private, EllipticCurvePrivateKey) or private.curve.name not in _CURVES:
        raise SigningKeyError(f"the signing key {key} {_NO_KEY}")


def sign(artifact: Artifact, key: Path) -> None:
    """Write the artifact's signature beside its files, over one that is there.

    key: a PEM file. Raises SigningKeyError, OSError.
    """
    from model_signing.signing import Config

    check_key(key)
    with tempfile.TemporaryDirectory() as aside:
        made = Path(aside) / SIGNATURE
        signer = Config().set_hashing_config(_all_but_the_signature())
        signer.use_elliptic_key_signer(private_key=key).sign(artifact.folder, made)
        write_durably(artifact.folder / SIGNATURE, made.read_bytes())


def read_signers(signers: Path) -> list["Certificate"]:
    """Read the certificates of a PEM file, at least one. Raises SignersError."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import load_pem_x509_certificates

    try:
        certificates = load_pem_x509_certificates(signers.read_bytes())
    except OSError as error:
        raise SignersError(f"the trusted signers {signers} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SignersError(f"the trusted signers {signers} are no PEM file of certificates") from error
    for certificate in certificates:
        key = certificate.public_key()
        if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in _CURVES:
            name = certificate.subject.rfc4514_string()
            raise SignersError(f"the trusted signers {signers}: {name} has no key of {', '.join(_CURVES)}")
    return certificates


def verify_signed(folder: Path, digest: str | None, signers: Path | None) -> Artifact:
    """Verify a folder as `verify` does, and its signature by one of the signers where there are any.

    signers: a PEM file of certificates; None: nothing is asked of signatures. Raises ArtifactError.
    """
    artifact = verify(folder, digest)
    if signers is None:
        return artifact
    path = folder / SIGNATURE
    if path.is_symlink() or not path.is_file():
        raise SignatureError(f"release {artifact.version} is not signed: it has no {SIGNATURE}")
    if path.stat().st_size > _MAX_BYTES:
        raise SignatureError(f"release {artifact.version}: a signature has at most {_MAX_BYTES} bytes")
    signature, now, refused = path.read_bytes(), datetime.now(UTC), []
    for certificate in read_signers(signers):
        name = certificate.subject.rfc4514_string()
        if now < certificate.not_valid_before_utc:
            refused.append(f"{name}: its key counts from {certificate.not_valid_before_utc:%Y-%m-%d}")
        elif now > certificate.not_valid_after_utc:
            refused.append(f"{name}: its key expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
        elif (problem := _problem(artifact, signature, certificate)) is None:
            return artifact
        else:
            refused.append(f"{name}: {problem}")
    raise SignatureError(f"release {artifact.version} has no trusted signature: {'; '.join(refused)}")


def _problem(artifact: Artifact, signature: bytes, certificate: "Certificate") -> str | None:
    """Why a signature is not this key's of every file of the artifact; None where it is."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from model_signing.verifying import Config

    with tempfile.TemporaryDirectory() as aside:
        copy, key = Path(aside) / SIGNATURE, Path(aside) / "key.pem"
        copy.write_bytes(signature)
        public = certificate.public_key()
        key.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        verifier = Config().set_hashing_config(_all_but_the_signature())
        try:
            verifier.use_elliptic_key_verifier(public_key=key).verify(artifact.folder, copy)
            payload = json.loads(base64.b64decode(json.loads(signature)["dsseEnvelope"]["payload"]))
            named = {resource["name"] for resource in payload["predicate"]["resources"]}
        except Exception as error:  # it reads what anybody wrote, and promises no kind of error
            return f"{type(error).__name__} {error}".splitlines()[0][:200]
    # A signature may name paths that it leaves out, and model-signing leaves them out too.
    if left_out := {MANIFEST, *artifact.manifest.files} - named:
        return f"it leaves out {', '.join(sorted(left_out))}"
    return None


def _all_but_the_signature() -> "Config":
    from model_signing.hashing import Config

    return Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
