"""An update makes what says when a video is forged, and the next one without steps for it keeps that."""

import numpy as np
import pytest
from approval_by_api import approve

from detector.release.artifact import EVALUATION, MODEL_CARD, SCANNER, verify
from detector.release.graph_contract import read_probe
from detector.serving.session import Session
from updater.candidate import scanned_clips
from updater.records import Evaluation
from updater.worker import run_once

pytestmark = pytest.mark.slow


@pytest.fixture
def few_clips(monkeypatch):
    for name in ("TRAINED", "CALIBRATED", "TESTED"):
        monkeypatch.setattr(scanned_clips, name, 4)
    monkeypatch.setattr(scanned_clips, "FULL_STEPS", 1)


def test_a_release_says_when_and_its_child_keeps_that_byte_for_byte(
    scant_recipes, few_clips, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("real", 12, frames=lambda rng: rng.integers(0, 256, (18, 64, 64, 3), np.uint8))
    remember("blocky", 50)
    with deploy_server() as (url, parts):
        first = run_once(make_settings(url, backbone="none", scanner_steps=1), memory_settings)
        assert (first.state, first.error) == ("proposed", None)
        release_0 = verify(parts.artifacts.folder(first.candidate), first.candidate)
        approve(url, release_0.digest)
        remember("striped", 50)
        second = run_once(make_settings(url, backbone="none"), memory_settings)
        assert (second.state, second.error) == ("proposed", None)
        release_1 = verify(parts.artifacts.folder(second.candidate), second.candidate)

    contract = release_0.manifest.scanner
    assert contract is not None
    assert contract.crop_px == 64
    assert contract.reals_told <= 0.05
    assert contract.export_difference <= 2 / 255
    assert release_1.manifest.scanner == contract
    for name in SCANNER.files:
        assert release_1.manifest.files[name] == release_0.manifest.files[name]
    session = Session(release_1.folder / SCANNER.model, contract, threads=1)
    asked, expected = read_probe(release_1.folder / SCANNER.probe, contract)
    assert contract.differences(session.score(asked), expected)["frame_score"] <= 2 / 255
    found = [
        Evaluation.model_validate_json((one.folder / EVALUATION).read_bytes()).scanner
        for one in (release_0, release_1)
    ]
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].stretches >= found[0].forged > 0 < found[0].reals
    assert (found[0].learnt_library, found[0].held_library) == (2, 0)
    for release in (release_0, release_1):
        card = (release.folder / MODEL_CARD).read_text()
        assert f"Of {found[0].reals} real clips, simulated from held-back real pictures" in card
        assert "It learnt from 2 clips of real videos of the library" in card
