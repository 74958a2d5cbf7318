"""What is registered is carried by the next release to its verdicts; what is removed is not."""

import json
import re

import httpx
import numpy as np
import pytest
import timm
import torch
from handler_calls import verdicts_on
from makers import WORTH
from safetensors.torch import load_file, save_file

from detector.release.artifact import EVALUATION, LOCALIZER, MODEL_CARD, SCANNER, WEIGHTS, sha256_of
from detector.release.experts import ExpertContract
from detector.release.tensors import read_probe
from detector.serving.session import Session
from updater.candidate import scanned
from updater.experts.build import Layout, build
from updater.experts.registry import ExpertRegistry, RegisteredExpert
from updater.records import Evaluation, RealsMarked
from updater.scan import simulated
from updater.worker import run_once

NAME, SIDE = "test_efficientnet", 64


@pytest.fixture
def register(tmp_path):
    """Registers an expert with random weights in an updater's work folder."""

    def register(settings, name="small", view="crop"):
        torch.manual_seed(0)
        checkpoint, model = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.onnx"
        save_file(timm.create_model(NAME, num_classes=1).state_dict(), checkpoint)
        wanted = ExpertContract(name=name, input=view, side_px=SIDE, digest="", checkpoint="", licence="MIT")
        contract = build(Layout(checkpoint, architecture=NAME), wanted, model)
        registry = ExpertRegistry(settings.work_dir)
        registry.add(RegisteredExpert(contract=contract, worth=WORTH), model)
        return registry, contract

    return register


def test_a_registered_expert_is_carried_and_a_removed_one_is_not(
    scant_recipes, make_settings, remember, deploy_server, learn, register
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as server:
        settings = make_settings(server[0], backbone="none")
        registry, contract = register(settings)
        release_0 = learn(*server, settings)
        remember("striped", 50)
        release_1 = learn(*server, settings)
        registry.remove("small")
        remember("posterised", 50)
        release_2 = learn(*server, settings)

    for release in (release_0, release_1):
        (carried,) = release.manifest.experts
        assert carried.digest == contract.digest
        assert carried.licence == "MIT"
        assert carried.reals > 0
        assert "It carries the expert small: small.safetensors" in (release.folder / MODEL_CARD).read_text()
    assert release_2.manifest.experts == ()
    # Two families can be left out, and the live release judges with its expert, which is registered no more.
    picture = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    for release, parts in ((release_1, {"expert_small"}), (release_2, set())):
        (verdict,) = verdicts_on(release.folder, picture)
        assert {name for name in verdict["unknown_parts"] if name.startswith("expert_")} == parts


@pytest.mark.parametrize(
    ("view", "damage", "said"),
    [
        ("crop", True, "expert small .* is damaged: remove it, and add it anew"),
        ("resize", False, "the memory keeps no pictures for expert small: set FORGEWATCH_MEMORY_PICTURE_PX"),
    ],
)
def test_an_expert_that_cannot_be_carried_refuses_the_update_in_one_line(
    scant_recipes, make_settings, remember, memory_settings, deploy_server, register, view, damage, said
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as (url, _):
        settings = make_settings(url, backbone="none")
        registry, _ = register(settings, view=view)
        if damage:
            (registry.folder / "small" / "expert.onnx").write_bytes(b"no graph")
        run = run_once(settings, memory_settings)
    assert run.state == "refused"
    assert re.search(said, run.error)
    assert len(run.error.splitlines()) == 1


def test_the_registered_file_is_the_one_that_was_proven(make_settings, register):
    registry, contract = register(make_settings("http://127.0.0.1:1"))
    (expert,) = registry.experts()
    assert sha256_of(expert.path) == contract.digest


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet"])
def test_a_checkpoint_becomes_a_release_that_gives_verdicts(
    name, published, head_recipes, make_settings, remember, deploy_server, learn
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as server:
        artifact = learn(*server, make_settings(server[0], backbone=name, checkpoint=published(name)))
    given, found = load_file(published(name)), load_file(artifact.folder / WEIGHTS)
    alike = [k for k, v in given.items() if torch.equal(v, found.get(f"backbone.{k}", torch.zeros(0)))]
    assert len(alike) > 0.9 * len(given) - 4
    mean = timm.get_pretrained_cfg(name).mean
    assert artifact.manifest.architecture.mean == pytest.approx([255 * one for one in mean])
    evaluation = json.loads((artifact.folder / "evaluation.json").read_bytes())
    assert evaluation["begun_with"].endswith("licence CC0-1.0)")
    assert "It began with weights of " in (artifact.folder / "model_card.md").read_text()
    photograph = np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)
    (verdict,) = verdicts_on(artifact.folder, photograph)
    assert verdict["label"] in ("real", "fake", "unknown")
    assert verdict["release"] == artifact.digest


@pytest.mark.parametrize(
    ("backbone", "checkpoint", "told"),
    [
        ("lcnet_05", None, "FORGEWATCH_UPDATER_BACKBONE: lcnet_05 is no model that timm knows: lcnet_0"),
        ("inception_v3", None, "cannot be made for images of 64 px"),
        ("test_efficientnet", "test_vit", "does not fit the network: it lacks"),
        ("lcnet_050", "absent", "absent.safetensors cannot be read"),
    ],
)
def test_what_cannot_be_begun_with_is_a_refusal_of_one_line(
    backbone, checkpoint, told, tmp_path, published, scant_recipes, make_settings, remember, memory_settings,
    deploy_server
):  # fmt: skip
    remember("real", 40)
    remember("blocky", 40)
    file = tmp_path / f"{checkpoint}.safetensors"
    if checkpoint == "test_vit":
        published(checkpoint)
    with deploy_server() as (url, _):
        settings = make_settings(url, backbone=backbone, checkpoint=file if checkpoint else None)
        run = run_once(settings, memory_settings)
        assert run.state == "refused"
        assert told in run.error
        assert "\n" not in run.error
        assert httpx.get(f"{url}/releases").json() == []


# An update makes what says where and when media are forged; the next one without steps for it keeps both.
@pytest.fixture
def few_clips(monkeypatch):
    for name in ("TRAINED", "CALIBRATED", "TESTED"):
        monkeypatch.setattr(scanned, name, 4)
    monkeypatch.setattr(scanned, "FULL_STEPS", 1)
    monkeypatch.setattr(simulated, "FRAMES", 32)


@pytest.mark.slow
def test_a_release_says_where_and_when_and_its_child_keeps_that_byte_for_byte(
    scant_recipes, few_clips, make_settings, remember, deploy_server, learn
):
    remember("real", 60)
    remember("real", 12, frames=lambda rng: rng.integers(0, 256, (18, 64, 64, 3), np.uint8))
    remember("blocky", 50)
    with deploy_server() as server:
        given = make_settings(server[0], backbone="none", localizer_steps=3, scanner_steps=1)
        release_0 = learn(*server, given)
        remember("striped", 50)
        release_1 = learn(*server, make_settings(server[0], backbone="none"))

    manifest = release_0.manifest
    answers = {LOCALIZER: (manifest.localizer, "cells"), SCANNER: (manifest.scanner, "frame_score")}
    assert release_1.manifest.localizer == manifest.localizer
    assert release_1.manifest.scanner == manifest.scanner
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
    marked, reals = manifest.localizer.reals_marked, manifest.localizer.reals
    assert reals == before.items["test"]["real"]
    assert before.reals_marked == RealsMarked(share=marked, reals=reals)
    fared = before.scanner
    assert fared is not None
    assert after.scanner == fared
    assert fared.stretches >= fared.forged > 0 < fared.reals
    assert (fared.learnt_library, fared.held_library) == (2, 0)
    for release in (release_0, release_1):
        card = (release.folder / MODEL_CARD).read_text()
        assert f"Of {fared.reals} real clips, simulated from held-back real pictures" in card
        assert "It learnt from 2 clips of real videos of the library" in card
