"""An update makes what says where and when media are forged; the next one without steps for it keeps both."""

import numpy as np
import pytest
from update_processes import approve

from detector.release.artifact import EVALUATION, LOCALIZER, MODEL_CARD, SCANNER, verify
from detector.release.tensors import read_probe
from detector.serving.session import Session
from updater.candidate import scanned
from updater.records import Evaluation, RealsMarked
from updater.scan import simulated
from updater.worker import run_once

pytestmark = pytest.mark.slow


@pytest.fixture
def few_clips(monkeypatch):
    for name in ("TRAINED", "CALIBRATED", "TESTED"):
        monkeypatch.setattr(scanned, name, 4)
    monkeypatch.setattr(scanned, "FULL_STEPS", 1)
    monkeypatch.setattr(simulated, "FRAMES", 32)


def test_a_release_says_where_and_when_and_its_child_keeps_that_byte_for_byte(
    scant_recipes, few_clips, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("real", 12, frames=lambda rng: rng.integers(0, 256, (18, 64, 64, 3), np.uint8))
    remember("blocky", 50)
    with deploy_server() as (url, artifacts):
        given = make_settings(url, backbone="none", localizer_steps=3, scanner_steps=1)
        first = run_once(given, memory_settings)
        assert first.state.startswith("proposed"), first.error
        release_0 = verify(artifacts / first.candidate, first.candidate)
        approve(url, release_0.digest)
        remember("striped", 50)
        second = run_once(make_settings(url, backbone="none"), memory_settings)
        assert second.state.startswith("proposed"), second.error
        release_1 = verify(artifacts / second.candidate, second.candidate)

    manifest = release_0.manifest
    answers = {LOCALIZER: (manifest.localizer, "cells"), SCANNER: (manifest.scanner, "frame_score")}
    assert (release_1.manifest.localizer, release_1.manifest.scanner) == (
        manifest.localizer,
        manifest.scanner,
    )
    for files, (contract, answer) in answers.items():
        assert contract.crop_px == 64
        assert contract.export_difference <= 2 / 255
        for name in files.files:
            assert release_1.manifest.files[name] == manifest.files[name]
        session = Session(release_1.folder / files.model, contract, threads=1)
        asked, expected = read_probe(release_1.folder / files.probe, contract)
        assert contract.differences(session.score(asked), expected)[answer] <= 2 / 255
    assert 0 <= manifest.localizer.reals_marked <= 1
    assert manifest.scanner.reals_told <= 0.05
    asked, _ = read_probe(release_0.folder / LOCALIZER.probe, manifest.localizer)
    assert np.unique(asked["of_picture"], return_counts=True)[1].max() <= 2

    before, after = (
        Evaluation.model_validate_json((release.folder / EVALUATION).read_bytes())
        for release in (release_0, release_1)
    )
    assert manifest.localizer.reals == before.items["test"]["real"]
    assert before.reals_marked == RealsMarked(
        share=manifest.localizer.reals_marked, reals=manifest.localizer.reals
    )
    fared = before.scanner
    assert fared is not None
    assert after.scanner == fared
    assert fared.stretches >= fared.forged > 0 < fared.reals
    assert (fared.learnt_library, fared.held_library) == (2, 0)
    for release in (release_0, release_1):
        card = (release.folder / MODEL_CARD).read_text()
        assert f"Of {fared.reals} real clips, simulated from held-back real pictures" in card
        assert "It learnt from 2 clips of real videos of the library" in card
