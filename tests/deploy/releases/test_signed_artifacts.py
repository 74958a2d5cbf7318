"""The store takes and shows what a trusted key signed, in a folder and in a real S3 server."""

from collections.abc import Callable

import pytest
from bars import Bar
from signers import MakeSigner, Signer

from deploy.releases.artifacts import ArtifactMissingError, ArtifactRefusedError, ArtifactStore
from detector.release.artifact import MANIFEST, SIGNATURE, Artifact
from detector.release.signature import sign
from memory.crops.object_store import ObjectStore
from tests.deploy.releases.test_artifacts import put

Make = Callable[..., Artifact]
MAX_BYTES = 2**26


def signature_of(store: ArtifactStore, artifact: Artifact) -> bytes:
    return b"".join(store.read(artifact.digest, SIGNATURE).pieces)


def signed(artifact: Artifact, signer: Signer) -> Artifact:
    sign(artifact, signer.key)
    return artifact


def test_a_signature_is_kept_beside_the_files_and_read_with_the_evidence(
    url: str, make_artifact: Make, signer: Signer
) -> None:
    store = ArtifactStore(url, MAX_BYTES, signer.certificate)
    artifact = signed(make_artifact(), signer)
    put(store, artifact, *artifact.manifest.files, SIGNATURE, MANIFEST)
    assert signature_of(store, artifact) == (artifact.folder / SIGNATURE).read_bytes()
    assert store.evidence(artifact.digest).digest == artifact.digest
    assert ObjectStore(url).names(".incoming") == []


@pytest.mark.bar("P1")
@pytest.mark.parametrize("how", ["not signed", "signed by another"])
def test_what_no_trusted_key_signed_is_neither_taken_nor_shown_as_evidence(
    url: str, make_artifact: Make, signer: Signer, make_signer: MakeSigner, bar: Bar, how: str
) -> None:
    bar.count(2)
    store = ArtifactStore(url, MAX_BYTES, signer.certificate)
    artifact = make_artifact()
    if how == "signed by another":
        sign(artifact, make_signer().key)
        put(store, artifact, SIGNATURE)
    with pytest.raises(ArtifactRefusedError, match="signed" if how == "not signed" else "Key mismatch"):
        put(store, artifact)
    with pytest.raises(ArtifactMissingError):
        store.evidence(artifact.digest)
    # The control: a store that trusts nobody by name takes it, and shows it as evidence.
    without = ArtifactStore(url, MAX_BYTES)
    put(without, artifact)
    assert without.evidence(artifact.digest).digest == artifact.digest
    with pytest.raises(ArtifactRefusedError):
        store.evidence(artifact.digest)


def test_a_complete_artifact_is_signed_again_by_a_trusted_key_alone(
    url: str, make_artifact: Make, signer: Signer, make_signer: MakeSigner
) -> None:
    artifact = make_artifact()
    without, store = ArtifactStore(url, MAX_BYTES), ArtifactStore(url, MAX_BYTES, signer.certificate)
    put(without, artifact)
    put(store, signed(artifact, signer), SIGNATURE)
    right = signature_of(store, artifact)
    assert store.evidence(artifact.digest).digest == artifact.digest
    sign(artifact, make_signer().key)
    with pytest.raises(ArtifactRefusedError, match="the signature is refused"):
        put(store, artifact, SIGNATURE)
    put(without, artifact, SIGNATURE)
    assert signature_of(store, artifact) == right
