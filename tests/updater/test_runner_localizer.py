"""An update makes what says where a picture is forged, and the next one without steps for it keeps that."""

import numpy as np
import pytest
from approval_by_api import approve

from detector.release.artifact import (
    EVALUATION,
    LOCALIZER,
    MODEL_CARD,
    verify,
)
from detector.release.graph_contract import read_probe
from detector.serving.session import Session
from updater.records import Evaluation, RealsMarked
from updater.worker import run_once

pytestmark = pytest.mark.slow


def test_a_release_says_where_and_its_child_keeps_that_byte_for_byte(
    scant_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as (url, parts):
        first = run_once(make_settings(url, backbone="none", localizer_steps=3), memory_settings)
        assert (first.state, first.error) == ("proposed", None)
        release_0 = verify(parts.artifacts.folder(first.candidate), first.candidate)
        approve(url, release_0.digest)
        remember("striped", 50)
        second = run_once(make_settings(url, backbone="none"), memory_settings)
        assert (second.state, second.error) == ("proposed", None)
        release_1 = verify(parts.artifacts.folder(second.candidate), second.candidate)

    contract = release_0.manifest.localizer
    assert contract is not None
    assert contract.crop_px == 64
    assert 0 <= contract.reals_marked <= 1
    evaluation = Evaluation.model_validate_json((release_0.folder / EVALUATION).read_bytes())
    assert contract.reals == evaluation.items["test"]["real"]
    assert evaluation.reals_marked == RealsMarked(share=contract.reals_marked, reals=contract.reals)
    asked, _ = read_probe(release_0.folder / LOCALIZER.probe, contract)
    assert np.unique(asked["of_picture"], return_counts=True)[1].max() <= 2
    assert contract.export_difference <= 2 / 255
    assert release_1.manifest.localizer == contract
    for name in LOCALIZER.files:
        assert release_1.manifest.files[name] == release_0.manifest.files[name]
    session = Session(release_1.folder / LOCALIZER.model, contract, threads=1)
    asked, expected = read_probe(release_1.folder / LOCALIZER.probe, contract)
    assert contract.differences(session.score(asked), expected)["cells"] <= 2 / 255


def test_without_steps_release_0_has_neither_a_localizer_nor_a_scanner(
    scant_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as (url, parts):
        run = run_once(make_settings(url, backbone="none"), memory_settings)
        assert (run.state, run.error) == ("proposed", None)
        release = verify(parts.artifacts.folder(run.candidate), run.candidate)
    assert (release.manifest.localizer, release.manifest.scanner) == (None, None)
    assert "it has no scanner" in (release.folder / MODEL_CARD).read_text()
