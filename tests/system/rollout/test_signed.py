"""A release that no trusted key signed never scores, on a real TorchServe; the one before goes on."""

from pathlib import Path
from typing import Any

import pytest
from bars import Bar
from prometheus_client import REGISTRY
from signers import MakeSigner, Signer

from detector.release.artifact import MODEL_CARD, SIGNATURE, Artifact, load, seal
from detector.release.signature import sign

pytestmark = pytest.mark.system


@pytest.mark.bar("P1")
@pytest.mark.parametrize("how", ["not signed", "signed by another", "changed and sealed again"])
def test_the_signed_release_scores_on_until_the_next_is_signed_too(
    deploy: Any, releases: list[Artifact], signer: Signer, make_signer: MakeSigner, bar: Bar, how: str
) -> None:
    bar.count(1)
    first, second, _ = releases
    old, new = deploy.publish(first, second)
    for each in (old, new):
        sign(load(each), signer.key)
    second = spoilt(new, how, make_signer)
    deploy.settings = deploy.settings.model_copy(update={"trusted_signers": signer.certificate})
    before = refused()
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.read(deploy.say(second))
        running.until(lambda: refused() >= before + 2)
        assert running.scoring() == {first.digest}
        versions, archives, _ = deploy.there()
        assert second.version not in versions | archives
        sign(second, signer.key)
        running.until_scoring(second)


@pytest.mark.bar("P1")
def test_the_control_where_nobody_is_trusted_by_name_an_unsigned_release_scores(
    deploy: Any, releases: list[Artifact], bar: Bar
) -> None:
    bar.count(1)
    first, second, _ = releases
    _, new = deploy.publish(first, second)
    second = spoilt(new, "changed and sealed again", None)
    with deploy.worker(deploy.say(second)) as running:
        running.until_scoring(second)


def refused() -> float:
    return REGISTRY.get_sample_value("forgewatch_detector_swaps_total", {"outcome": "refused"}) or 0.0


def spoilt(folder: Path, how: str, make_signer: MakeSigner | None) -> Artifact:
    """Take the good signature from what is published, and return what it is now."""
    match how:
        case "not signed":
            (folder / SIGNATURE).unlink()
        case "signed by another":
            assert make_signer is not None
            sign(load(folder), make_signer().key)
        case _:
            signature = folder / SIGNATURE
            kept = signature.read_bytes() if signature.is_file() else b""
            (folder / MODEL_CARD).write_text("Better than it is.\n")
            digest = seal(folder, load(folder).manifest).digest
            signature.write_bytes(kept)
            folder = folder.rename(folder.with_name(digest))
    return load(folder)
