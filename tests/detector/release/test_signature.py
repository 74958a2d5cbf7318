"""No byte is used that a trusted key did not sign: each way to bring another, and each is refused."""

import base64
import json
import re
import shutil
from pathlib import Path

import pytest

from detector.release.artifact import (
    DETECTOR,
    EVALUATION,
    LOCALIZER,
    MANIFEST,
    MODEL_CARD,
    REFERENCE,
    SCANNER,
    SIGNATURE,
    seal,
)
from detector.release.manifest import ArtifactError
from detector.release.signature import (
    SignatureError,
    SignersError,
    SigningKeyError,
    check_key,
    read_signers,
    sign,
    verify_signed,
)

pytestmark = pytest.mark.slow

NAMED = [
    *(EVALUATION, MODEL_CARD, REFERENCE),
    *(name for graph in (DETECTOR, LOCALIZER, SCANNER) for name in graph.files),
]


def flip(path, at=0.5):
    """Turn one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1
    path.write_bytes(content)


def sealed_again(signed_artifact):
    """What whoever writes to deploy's store can make of a changed folder: all digests are right again."""
    signature = (signed_artifact.folder / SIGNATURE).read_bytes()
    again = seal(signed_artifact.folder, signed_artifact.manifest)
    (again.folder / SIGNATURE).write_bytes(signature)
    return again


def test_the_files_of_this_module_are_those_of_the_release(signed_artifact):
    assert set(NAMED) == set(signed_artifact.manifest.files)


@pytest.mark.bar("P1")
@pytest.mark.parametrize("curve", ["P256", "P384", "P521"])
def test_what_a_trusted_key_signed_is_taken(signed_artifact, make_signer, curve):
    made = make_signer(curve=curve)
    sign(signed_artifact, made.key)
    assert (
        verify_signed(signed_artifact.folder, signed_artifact.digest, made.certificate).digest
        == signed_artifact.digest
    )


def test_each_of_several_trusted_keys_may_sign(signed_artifact, signer, make_signer, tmp_path):
    both = tmp_path / "both.crt"
    both.write_bytes(make_signer("next").certificate.read_bytes() + signer.certificate.read_bytes())
    assert (
        verify_signed(signed_artifact.folder, signed_artifact.digest, both).digest == signed_artifact.digest
    )


@pytest.mark.bar("P1")
@pytest.mark.parametrize("name", [MANIFEST, *NAMED])
def test_a_flipped_bit_of_any_file_is_refused(signed_artifact, signer, bar, name):
    bar.count(1)
    flip(signed_artifact.folder / name)
    with pytest.raises(ArtifactError):
        verify_signed(signed_artifact.folder, signed_artifact.digest, signer.certificate)


@pytest.mark.bar("P1")
@pytest.mark.parametrize("name", NAMED)
def test_a_flipped_bit_is_refused_where_every_digest_was_made_right_again(signed_artifact, signer, bar, name):
    bar.count(1)
    flip(signed_artifact.folder / name)
    again = sealed_again(signed_artifact)
    with pytest.raises(SignatureError, match="Signature mismatch"):
        verify_signed(again.folder, again.digest, signer.certificate)
    # The control: without signers nothing is wrong with it.
    assert verify_signed(again.folder, again.digest, None).digest == again.digest


@pytest.fixture
def other(signed_artifact, tmp_path):
    """Another release, unsigned."""
    folder = Path(shutil.copytree(signed_artifact.folder, tmp_path / "other"))
    (folder / MODEL_CARD).write_text("Another.\n")
    return seal(folder, signed_artifact.manifest)


@pytest.mark.bar("P1")
def test_the_signature_of_another_release_is_refused(signed_artifact, other, signer, bar):
    bar.count(1)
    sign(other, signer.key)
    shutil.copy(other.folder / SIGNATURE, signed_artifact.folder / SIGNATURE)
    with pytest.raises(SignatureError, match="mismatch"):
        verify_signed(signed_artifact.folder, signed_artifact.digest, signer.certificate)


@pytest.mark.bar("P1")
@pytest.mark.parametrize("disguised", [False, True])
def test_another_key_of_the_same_name_is_refused(signed_artifact, signer, make_signer, bar, disguised):
    bar.count(1)
    ours = json.loads((signed_artifact.folder / SIGNATURE).read_bytes())["verificationMaterial"]
    sign(signed_artifact, make_signer().key)
    if disguised:
        theirs = json.loads((signed_artifact.folder / SIGNATURE).read_bytes()) | {
            "verificationMaterial": ours
        }
        (signed_artifact.folder / SIGNATURE).write_text(json.dumps(theirs))
    with pytest.raises(SignatureError, match="InvalidSignature" if disguised else "Key mismatch"):
        verify_signed(signed_artifact.folder, signed_artifact.digest, signer.certificate)


@pytest.mark.bar("P1")
def test_two_releases_whose_keys_were_swapped_are_refused(signed_artifact, other, signer, make_signer, bar):
    bar.count(2)
    second = make_signer("second")
    sign(other, second.key)
    for each, trusted in ((signed_artifact, second), (other, signer)):
        with pytest.raises(SignatureError, match="Key mismatch"):
            verify_signed(each.folder, each.digest, trusted.certificate)
    for each, trusted in ((signed_artifact, signer), (other, second)):
        assert verify_signed(each.folder, each.digest, trusted.certificate).digest == each.digest


@pytest.mark.bar("P1")
@pytest.mark.parametrize(
    ("since", "until", "said"),
    [
        (-2, -0.001, "expired on"),
        (-400, -35, "expired on"),
        (0.01, 365, "counts from"),
        (30, 60, "counts from"),
    ],
)
def test_a_key_outside_of_its_dates_is_refused(signed_artifact, make_signer, bar, since, until, said):
    bar.count(1)
    made = make_signer("late", since, until)
    sign(signed_artifact, made.key)
    with pytest.raises(SignatureError, match=f"CN=late: its key {said}"):
        verify_signed(signed_artifact.folder, signed_artifact.digest, made.certificate)
    assert (
        verify_signed(signed_artifact.folder, signed_artifact.digest, None).digest == signed_artifact.digest
    )


@pytest.mark.bar("P1")
def test_an_expired_key_is_no_help_beside_an_idle_one(signed_artifact, make_signer, bar, tmp_path):
    bar.count(1)
    expired = make_signer("old", -2, -1)
    sign(signed_artifact, expired.key)
    both = tmp_path / "both.crt"
    both.write_bytes(expired.certificate.read_bytes() + make_signer("new").certificate.read_bytes())
    with pytest.raises(SignatureError, match=r"CN=old: its key expired on .*; CN=new: .* Key mismatch"):
        verify_signed(signed_artifact.folder, signed_artifact.digest, both)


@pytest.mark.bar("P1")
@pytest.mark.parametrize("left_out", [MANIFEST, MODEL_CARD, "."])
def test_a_trusted_key_that_signed_only_some_files_is_refused(signed_artifact, signer, bar, left_out):
    from model_signing import hashing, signing

    bar.count(1)
    leaving_out = hashing.Config().set_ignored_paths(paths=[left_out, SIGNATURE], ignore_git_paths=False)
    config = signing.Config().set_hashing_config(leaving_out)
    config.use_elliptic_key_signer(private_key=signer.key).sign(
        signed_artifact.folder, signed_artifact.folder / SIGNATURE
    )
    with pytest.raises(SignatureError, match="leaves out"):
        verify_signed(signed_artifact.folder, signed_artifact.digest, signer.certificate)


@pytest.mark.bar("P1")
@pytest.mark.parametrize("name", [MANIFEST, MODEL_CARD])
def test_a_file_that_is_a_symbolic_link_is_refused(signed_artifact, signer, bar, name):
    bar.count(1)
    path = signed_artifact.folder / name
    path.rename(signed_artifact.folder.parent / name)
    path.symlink_to(signed_artifact.folder.parent / name)
    with pytest.raises(ArtifactError):
        verify_signed(signed_artifact.folder, signed_artifact.digest, signer.certificate)


@pytest.mark.bar("P1")
def test_a_file_that_nobody_signed_is_refused(signed_artifact, signer, bar):
    bar.count(1)
    (signed_artifact.folder / "sitecustomize.py").write_text("raise SystemExit\n")
    with pytest.raises(SignatureError, match="Extra files"):
        verify_signed(signed_artifact.folder, signed_artifact.digest, signer.certificate)


@pytest.fixture(params=["missing", "empty", "a private key", "no certificate", "RSA", "K256"])
def no_signers(request, tmp_path, make_signer):
    """A file of trusted signers that is none."""
    path = tmp_path / "signers.crt"
    match request.param:
        case "empty":
            path.write_bytes(b"")
        case "a private key":
            path.write_bytes(make_signer().key.read_bytes())
        case "no certificate":
            path.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        case "RSA" | "K256":
            path = make_signer(curve=request.param).certificate
    return path


@pytest.mark.bar("P1")
def test_where_the_trusted_signers_cannot_be_read_nothing_is_trusted(signed_artifact, no_signers, bar):
    bar.count(1)
    with pytest.raises(SignersError, match="the trusted signers"):
        verify_signed(signed_artifact.folder, signed_artifact.digest, no_signers)


@pytest.mark.parametrize("curve", ["RSA", "K256", None])
def test_a_file_that_is_no_key_to_sign_with_is_told_by_its_name(make_signer, tmp_path, curve):
    key = make_signer(curve=curve).key if curve else tmp_path / "nowhere.key"
    with pytest.raises(SigningKeyError, match=re.escape(str(key))):
        check_key(key)
    with pytest.raises(SigningKeyError, match=r"the signing key .* no private key"):
        check_key(make_signer().certificate)


def test_a_release_that_is_sealed_anew_has_no_signature_left(signed_artifact):
    assert not (seal(signed_artifact.folder, signed_artifact.manifest).folder / SIGNATURE).exists()


def test_the_certificates_of_the_readmes_line_can_be_read(signer):
    (certificate,) = read_signers(signer.certificate)
    assert certificate.subject.rfc4514_string() == "CN=updater"


# A signature that is not as it was written is refused in one line, whatever it is now.
def rewritten(change):

    def write(path):
        bundle = json.loads(path.read_bytes())
        change(bundle)
        path.write_text(json.dumps(bundle))

    return write


def payload(change):

    def within(bundle):
        statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        change(statement)
        encoded = base64.b64encode(json.dumps(statement).encode()).decode()
        bundle["dsseEnvelope"]["payload"] = encoded

    return rewritten(within)


def linked(path):
    path.rename(path.with_suffix(".aside"))
    path.symlink_to(path.with_suffix(".aside"))


def replaced_by_a_folder(path):
    path.unlink()
    path.mkdir()


def signatures(bundle):
    found = bundle["dsseEnvelope"]["signatures"]
    return found


SPOILT = {
    "there is none": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "without its last byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "random bytes": lambda path: path.write_bytes(bytes(range(256))),
    "null": lambda path: path.write_text("null"),
    "a list": lambda path: path.write_text("[]"),
    "an object of nothing": lambda path: path.write_text("{}"),
    "a number of many digits": lambda path: path.write_text("9" * 100_000),
    "nested without end": lambda path: path.write_text("[" * 100_000),
    "larger than any": lambda path: path.write_bytes(path.read_bytes() + b" " * 2**18),
    "a symbolic link to it": linked,
    "a folder": replaced_by_a_folder,
    "a bit of the signature flipped": rewritten(
        lambda bundle: signatures(bundle)[0].update(sig=base64.b64encode(b"0" * 70).decode())
    ),
    "signed by nobody": rewritten(lambda bundle: signatures(bundle).clear()),
    "a wrong one before the right one": rewritten(
        lambda bundle: signatures(bundle).insert(0, {"sig": base64.b64encode(b"0" * 70).decode()})
    ),
    "of no key": rewritten(lambda bundle: bundle["verificationMaterial"].pop("publicKey")),
    "another kind of payload": rewritten(
        lambda bundle: bundle["dsseEnvelope"].update(payloadType="text/plain")
    ),
    "a file's digest changed in it": payload(
        lambda statement: statement["predicate"]["resources"][0].update(digest="0" * 64)
    ),
    "a file left out of it": payload(lambda statement: statement["predicate"]["resources"].pop()),
    "files to be ignored added to it": payload(
        lambda statement: statement["predicate"]["serialization"].update(ignore_paths=["."])
    ),
}


@pytest.mark.bar("P1")
@pytest.mark.parametrize("how", SPOILT)
def test_a_signature_that_is_spoilt_is_refused_in_one_line(signed_artifact, signer, bar, how):
    bar.count(1)
    SPOILT[how](signed_artifact.folder / SIGNATURE)
    with pytest.raises(SignatureError) as refused:
        verify_signed(signed_artifact.folder, signed_artifact.digest, signer.certificate)
    assert signed_artifact.version in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    # The control: without signers nobody looks at it.
    assert (
        verify_signed(signed_artifact.folder, signed_artifact.digest, None).digest == signed_artifact.digest
    )
