"""A signature that is not as it was written is refused in one line, whatever it is now."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bars import Bar
from signers import Signer

from detector.release.artifact import SIGNATURE, Artifact
from detector.release.signature import SignatureError, verify_signed

pytestmark = pytest.mark.slow


def rewritten(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Makes what changes a signature's bundle, which `change` is given as JSON."""

    def write(path: Path) -> None:
        bundle = json.loads(path.read_bytes())
        change(bundle)
        path.write_text(json.dumps(bundle))

    return write


def payload(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Makes what changes the statement that was signed."""

    def within(bundle: dict[str, Any]) -> None:
        statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        change(statement)
        encoded = base64.b64encode(json.dumps(statement).encode()).decode()
        bundle["dsseEnvelope"]["payload"] = encoded

    return rewritten(within)


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".aside"))
    path.symlink_to(path.with_suffix(".aside"))


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def signatures(bundle: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bundle["dsseEnvelope"]["signatures"]
    return found


SPOILT: dict[str, Callable[[Path], object]] = {
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
def test_a_signature_that_is_spoilt_is_refused_in_one_line(
    signed_artifact: Artifact, signer: Signer, bar: Bar, how: str
) -> None:
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
