"""Keys that sign releases, each with the certificate by which it is trusted."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detector.release.artifact import Artifact, load
from detector.release.signature import sign


@dataclass(frozen=True)
class Signer:
    """PEM files: a private key, and its certificate."""

    key: Path
    certificate: Path


MakeSigner = Callable[..., Signer]


@pytest.fixture(scope="session")
def make_signer(tmp_path_factory: pytest.TempPathFactory) -> MakeSigner:
    """Makes a signer as the README's openssl does; since, until: days from now between which it counts."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    def make(name: str = "updater", since: float = -1, until: float = 365, *, curve: str = "P256") -> Signer:
        folder, now = tmp_path_factory.mktemp("signer"), datetime.now(UTC)
        curves = {"P256": ec.SECP256R1, "P384": ec.SECP384R1, "P521": ec.SECP521R1, "K256": ec.SECP256K1}
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
        if curve == "RSA":
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        else:
            key = ec.generate_private_key(curves[curve]())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=since))
            .not_valid_after(now + timedelta(days=until))
            .sign(key, SHA256())
        )
        made = Signer(folder / "signing.key", folder / "signing.crt")
        made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        made.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        return made

    return make


@pytest.fixture(scope="session")
def signer(make_signer: MakeSigner) -> Signer:
    """A signer that counts today."""
    return make_signer()


@pytest.fixture
def signed_artifact(scanned_artifact: Artifact, signer: Signer, tmp_path: Path) -> Artifact:
    """A signed release with every kind of file, of this test alone."""
    copy = load(Path(shutil.copytree(scanned_artifact.folder, tmp_path / "artifact")))
    sign(copy, signer.key)
    return copy
