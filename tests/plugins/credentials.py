"""C2PA credentials by a test key: its certificates, and media that it signs."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO

import c2pa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

IPTC = "http://cv.iptc.org/newscodes/digitalsourcetype/"
TRAINED, EDITED = IPTC + "trainedAlgorithmicMedia", IPTC + "compositeWithTrainedAlgorithmicMedia"
CAPTURED = IPTC + "digitalCapture"


@dataclass(frozen=True)
class Signer:
    """Who signs: the chain and the key, PEM; anchor is the chain's root."""

    chain: bytes
    key: bytes
    anchor: str


@cache
def signer(name="Test Signer", days=365, ocsp=None):
    """A signer under a root of its own, whose certificate is valid for so many days; ocsp: who revokes it."""
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _certificate("Test Root", root_key, "Test Root", root_key, 365, ca=True)
    leaf = _certificate(name, key, "Test Root", root_key, days, ca=False, ocsp=ocsp)
    root_pem, leaf_pem = (cert.public_bytes(serialization.Encoding.PEM) for cert in (root, leaf))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Signer(leaf_pem + root_pem, private, root_pem.decode())


def _certificate(name, key, issuer, issuer_key, days, *, ca, ocsp=None):
    def named(common):
        organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test Makers")
        return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, common)])

    uses = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
    ) | dict.fromkeys(("encipher_only", "decipher_only"), False)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=730))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, **uses), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if not ca:
        use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        builder = builder.add_extension(use, critical=False)
    if ocsp:
        place = x509.AccessDescription(
            AuthorityInformationAccessOID.OCSP, x509.UniformResourceIdentifier(ocsp)
        )
        builder = builder.add_extension(x509.AuthorityInformationAccess([place]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def action(name, source_type=None, **more):
    """One action of a manifest, as C2PA's library takes it."""
    return {"action": f"c2pa.{name}"} | ({"digitalSourceType": source_type} if source_type else {}) | more


def signed(media, kind, *actions, by=None, generator="Test Generator", parent=None, more=0):
    """Media of a MIME type with a credential of these actions, and more edits; parent: what was edited."""
    by = by or signer()
    manifest = {
        "claim_generator_info": [{"name": generator, "version": "1"}],
        "assertions": [
            {"label": "c2pa.actions", "data": {"actions": [*actions, *[action("edited")] * more]}}
        ],
    }
    info = c2pa.C2paSignerInfo(b"es256", by.chain, by.key, None)
    settings = c2pa.Settings.from_dict({"builder": {"thumbnail": {"enabled": False}}})
    out = BytesIO()
    with c2pa.Builder(json.dumps(manifest), context=c2pa.Context(settings)) as builder:
        if parent is not None:
            builder.set_intent(c2pa.C2paBuilderIntent.EDIT)
            about = {"title": "before.jpg", "relationship": "parentOf"}
            builder.add_ingredient(json.dumps(about), kind, BytesIO(parent))
        builder.sign(c2pa.Signer.from_info(info), kind, BytesIO(media), out)
    return out.getvalue()
