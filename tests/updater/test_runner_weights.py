"""Weights that a release begins with, of a backbone or of a model on whole pictures, to its verdicts."""

import json

import httpx
import numpy as np
import pytest
import timm
import torch
from handler_calls import verdicts_on
from safetensors.torch import load_file
from update_processes import approve

from detector.release.artifact import WEIGHTS, verify
from detector.serving.session import open_session
from ingest.records import PicturePlan
from updater.candidate.evaluate import batch
from updater.data.training_data import load
from updater.worker import run_once

SIDE = 64


@pytest.fixture
def pictures(memory_settings):
    return memory_settings.model_copy(update={"picture_px": SIDE})


def painted(colour):
    """Whole pictures of one colour and noise, of which the crops show nothing."""
    return lambda rng: (np.array(colour) + rng.normal(0, 25, (SIDE, SIDE, 3))).clip(0, 255).astype(np.uint8)


RED, GREEN, BLUE = painted((180, 60, 60)), painted((60, 180, 60)), painted((60, 60, 180))


def test_a_checkpoint_votes_on_whole_pictures_release_after_release(
    published, scant_recipes, make_settings, remember, pictures, deploy_server, store, crops
):
    remember("real", 60, shown=RED)
    remember("blocky", 50, shown=GREEN)
    with deploy_server() as (url, artifacts):
        settings = make_settings(
            url, backbone="none", picture_backbone="test_vit", picture_checkpoint=published("test_vit")
        )
        first = run_once(settings, pictures)
        assert (first.state, first.error) == ("proposed", None)
        release_0 = verify(artifacts / first.candidate, first.candidate)
        approve(url, release_0.digest)
        remember("striped", 50, shown=BLUE)
        # Its branch is the parent's; the settings that it began with say nothing any more.
        second = run_once(make_settings(url, backbone="none"), pictures)
        assert (second.state, second.error) == ("proposed", None)
        release_1 = verify(artifacts / second.candidate, second.candidate)

    for artifact in (release_0, release_1):
        manifest = artifact.manifest
        plan = PicturePlan(width_px=SIDE, height_px=SIDE, interpolation="bicubic")
        assert manifest.contract.picture_plan == plan
        assert manifest.architecture.picture.weights.endswith("licence CC0-1.0)")
        assert "looks at the whole picture" in (artifact.folder / "model_card.md").read_text()
    before, after = (load_file(one.folder / WEIGHTS) for one in (release_0, release_1))
    frozen = [k for k in before if k.startswith("picture.backbone.")]
    assert frozen
    assert all(torch.equal(before[k], after[k]) for k in frozen)
    for artifact in (release_0, release_1):
        assert "licence CC0-1.0)" in (artifact.folder / "model_card.md").read_text()
    assert after["picture.head.weight"].shape[0] == 3

    # The crops tell next to nothing after so little training; the pictures tell all.
    items = load(store, crops, "test", picture=plan)
    said = open_session(release_1, 1).score(batch(items))["logits"]
    named = np.array(release_1.manifest.classes)[said.argmax(1)]
    assert np.mean(named == np.array(items.families)) > 0.9

    rng = np.random.default_rng(1)
    red, green = verdicts_on(release_1.folder, RED(rng), GREEN(rng))
    assert red["release"] == green["release"] == release_1.digest
    assert red["fake_probability"] < 0.5 < green["fake_probability"]
    # Two families can be left out, one after the other.
    assert "2 families was left out once." in (release_1.folder / "model_card.md").read_text()


def test_a_model_on_whole_pictures_begins_after_a_release_without_one_where_pictures_were_kept(
    published, scant_recipes, make_settings, remember, pictures, deploy_server, tmp_path
):
    remember("real", 60, shown=RED)
    remember("blocky", 50, shown=GREEN)
    with deploy_server() as (url, artifacts):
        first = run_once(make_settings(url, backbone="none"), pictures)
        assert (first.state, first.error) == ("proposed", None)
        approve(url, first.candidate)
        remember("striped", 50, shown=BLUE)
        settings = make_settings(
            url, backbone="none", picture_backbone="test_vit", picture_checkpoint=published("test_vit")
        )
        second = run_once(settings, pictures)
        assert (second.state, second.error) == ("proposed", None)
        release = verify(artifacts / second.candidate, second.candidate)
        assert release.manifest.parent == first.candidate
        rng = np.random.default_rng(1)
        red, green = verdicts_on(release.folder, RED(rng), GREEN(rng))
        assert red["fake_probability"] < 0.5 < green["fake_probability"]
        # What it made of the pictures lies where the next update finds it.
        assert list((tmp_path / "runner/frozen").rglob("*.safetensors"))

        # Of what the detector remembered without pictures none can be made.
        remember("posterised", 50)
        third = run_once(settings, pictures)
        assert third.state == "refused"
        assert "it cannot be made of their crops: set FORGEWATCH_MEMORY_PICTURE_PX" in third.error
        assert "\n" not in third.error


@pytest.mark.parametrize(
    ("name", "checkpoint", "kept", "told"),
    [
        ("test_vit", "test_vit", {"picture_px": 0}, "set FORGEWATCH_MEMORY_PICTURE_PX"),
        ("test_vit", "test_vit", {"picture_px": 32}, "import them into an empty memory"),
        (
            "test_vit",
            "test_vit",
            {"picture_interpolation": "bilinear"},
            "wants pictures resized bicubic, and the memory keeps them bilinear",
        ),
        ("test_efficientnet", "test_vit", {}, "does not fit the network: it lacks"),
        ("test_vitt", "test_vit", {}, "test_vitt is no model that timm knows"),
    ],
)
def test_what_no_branch_can_be_made_of_is_a_refusal_of_one_line(
    name, checkpoint, kept, told, published, scant_recipes, make_settings, remember, pictures, deploy_server
):
    remember("real", 40, shown=RED)
    remember("blocky", 40, shown=GREEN)
    with deploy_server() as (url, _):
        settings = make_settings(
            url,
            backbone="none",
            picture_backbone=name,
            picture_checkpoint=published(checkpoint),
        )
        run = run_once(settings, pictures.model_copy(update=kept))
        assert run.state == "refused"
        assert told in run.error
        assert "\n" not in run.error


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet"])
def test_a_checkpoint_becomes_a_release_that_gives_verdicts(
    name, published, head_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as (url, artifacts):
        run = run_once(make_settings(url, backbone=name, checkpoint=published(name)), memory_settings)
        assert (run.state, run.error) == ("proposed", None)
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
        ("none", "test_vit", "is of a backbone, and the network has none"),
        ("lcnet_050", "absent", "absent.safetensors cannot be read"),
    ],
)
def test_what_cannot_be_begun_with_is_a_refusal_of_one_line(
    backbone, checkpoint, told, tmp_path, published, scant_recipes, make_settings, remember, memory_settings,
    deploy_server,
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
