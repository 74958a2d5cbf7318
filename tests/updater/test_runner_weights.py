"""Weights that a release begins with, from a backbone's checkpoint to its verdicts."""

import json

import httpx
import numpy as np
import pytest
import timm
import torch
from handler_calls import verdicts_on
from safetensors.torch import load_file

from detector.release.artifact import WEIGHTS, verify
from updater.worker import run_once


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet"])
def test_a_checkpoint_becomes_a_release_that_gives_verdicts(
    name, published, head_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as (url, artifacts):
        run = run_once(make_settings(url, backbone=name, checkpoint=published(name)), memory_settings)
        assert run.state.startswith("proposed"), run.error
        artifact = verify(artifacts / run.candidate, run.candidate)
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
    assert verdict["release"] == run.candidate


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
