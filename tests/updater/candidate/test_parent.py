from dataclasses import replace

import numpy as np
import pytest

from detector.release.manifest import decide
from detector.serving.session import open_session
from detector.verdicts import fake_probabilities
from updater.candidate.evaluate import score_items
from updater.candidate.plan import live_calls, load_parent, make_plan
from updater.data.training_data import LabelledCrops, Splits
from updater.settings import UpdaterSettings

SETTINGS = UpdaterSettings(device="cpu")


def split(name, counts):
    rng = np.random.default_rng(len(name))
    families = tuple(family for family, count in counts.items() for _ in range(count))
    ids = tuple(f"{name}-{number}" for number in range(len(families)))
    # Crops of several strengths of noise lie on both sides of the thresholds.
    strength = rng.uniform(0, 128, (2 * len(ids), 1, 1, 1))
    crops = (128 + rng.uniform(-1, 1, (2 * len(ids), 64, 64, 3)) * strength).astype(np.uint8)
    return LabelledCrops(ids, families, ("test",) * len(ids), ids, crops, 2 * np.arange(len(ids) + 1))


@pytest.fixture(scope="module")
def plan(untrained_artifact):
    counts = {"real": 20, "blend": 10, "upsampling": 10, "new": 8}
    parts = {name: split(name, counts) for name in ("train", "calibration", "test")}
    return make_plan(SETTINGS, load_parent(untrained_artifact), Splits(**parts))


def test_the_network_as_it_was_trained_says_what_the_live_release_says_of_each_item(plan):
    artifact = plan.parent.artifact
    items = plan.splits.calibration
    scored = score_items(open_session(artifact, threads=1), items)
    fake = fake_probabilities(scored["logits"])
    bounds = {
        "unknown_threshold": float(np.median(scored["unknown_score"])) + 1e-3,
        "fake_threshold": float(np.median(fake)) + 1e-6,
    }
    gate = artifact.manifest.gate.model_copy(update=bounds)
    moved = replace(artifact, manifest=artifact.manifest.model_copy(update={"gate": gate}))
    live = live_calls(replace(plan, parent=replace(plan.parent, artifact=moved)), lambda *at: None)
    assert live.known.tolist() == [family != "new" for family in items.families]
    assert 0 < live.unknown.sum() < len(items)
    assert 0 < live.fake.sum() < len(items)
    assert np.array_equal(live.unknown, scored["unknown_score"] > gate.unknown_threshold)
    assert np.array_equal(live.fake, fake > gate.fake_threshold)


def test_of_videos_it_says_what_the_live_release_says_of_videos(plan):
    artifact, items = plan.parent.artifact, plan.splits.calibration
    scored = score_items(open_session(artifact, threads=1), items)
    unknown, fake = scored["unknown_score"], fake_probabilities(scored["logits"])
    lower, higher = (float(one) for one in np.quantile(unknown, [0.3, 0.7]))
    gate = artifact.manifest.gate.model_copy(
        update={
            "unknown_threshold": lower,
            "video_unknown_threshold": higher,
            "fake_threshold": float(np.median(fake)) + 1e-6,
        }
    )
    moved = replace(artifact, manifest=artifact.manifest.model_copy(update={"gate": gate}))
    videos = np.arange(len(items)) % 2 == 0
    splits = replace(plan.splits, calibration=replace(items, videos=videos))
    of_videos = replace(plan, parent=replace(plan.parent, artifact=moved), splits=splits)
    live = live_calls(of_videos, lambda *at: None)
    each = zip(unknown, fake, videos, strict=True)
    expected = [decide(float(u), float(f), gate, video=bool(v)) == "unknown" for u, f, v in each]
    assert live.unknown.tolist() == expected
    assert expected != (unknown > lower).tolist(), "some video lies between the two"


def test_where_nothing_is_live_there_is_nothing_to_keep(plan):
    first = make_plan(SETTINGS, None, plan.splits)
    assert live_calls(first, lambda *at: None) is None
