"""Every learner of the table on the smallest stream of two steps."""

from dataclasses import replace

import pytest
import torch

from detector.release.manifest import Architecture
from updater.benchmark.learners.methods import LEARNERS
from updater.training.pools import backbone_rows, classify_items, forensic_rows
from updater.training.step import FIRST, Options, Step, TrainedModel

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
CPU = torch.device("cpu")
RECIPE = replace(FIRST, backbone_steps=2, balanced_steps=3, batch=8, pseudo_share=0.2)
BY_STEPS = [name for name in LEARNERS if name != "lda"]
CLASSES = ("a/real", "a/blocky", "b/real", "b/striped")


@pytest.fixture(scope="module")
def features(labelled):
    """The two steps' items with their forensic features, which no learner changes."""
    from detector.model.network import Network

    with torch.random.fork_rng(devices=[]):
        network = Network(TINY, 2)
    first = labelled({"a/real": 4, "a/blocky": 4})
    both = labelled({"a/real": 2, "a/blocky": 2, "b/real": 4, "b/striped": 4}, seed=1)
    return [
        replace(one, crop_features=forensic_rows(network, one.crops, CPU).numpy()) for one in (first, both)
    ]


def steps(features, options):
    first, second = features
    one = Step(first, CLASSES[:2], TINY, options=options, recipe=RECIPE, seed=1)
    return one, lambda learnt: replace(one, train=second, classes=CLASSES, previous=learnt, seed=2)


class StopError(Exception):
    pass


def logits(learnt: TrainedModel, items):
    network = learnt.network
    rows = backbone_rows(network, items.crops, CPU)
    return classify_items(network, rows, torch.from_numpy(items.crop_features), items.starts).logits


@pytest.fixture(scope="module")
def through_both(features):
    """Learns both steps with a learner, once for all tests: the step of the second, and what came of it."""
    done = {}

    def through_both(name, options):
        if (name, options) not in done:
            first, then = steps(features, options)
            before = torch.get_rng_state()
            second = then(LEARNERS[name](first))
            done[name, options] = second, LEARNERS[name](second)
            assert torch.equal(before, torch.get_rng_state())
        return done[name, options]

    return through_both


@pytest.mark.parametrize("scheme", ["bc", "mc", "mt"])
@pytest.mark.parametrize("name", BY_STEPS)
def test_a_learner_trains_through_two_steps_and_says_one_logit_a_class(name, scheme, features, through_both):
    _, learnt = through_both(name, Options(scheme=scheme))
    assert learnt.classes == CLASSES
    assert not learnt.network.training
    said = logits(learnt, features[1])
    assert said.shape == (12, 2 if scheme == "bc" else 4)
    assert torch.isfinite(said).all()


@pytest.mark.parametrize("name", BY_STEPS)
def test_the_same_step_gives_the_same_network_also_where_it_was_interrupted(
    name, through_both, tmp_path, monkeypatch
):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 1)
    step, once = through_both(name, Options())
    stages: list[str] = []
    again = LEARNERS[name](replace(step, progress=lambda stage, done, total: stages.append(stage)))
    last = stages[-1]

    def stop(stage, done, total):
        if stage == last and done == 2:
            raise StopError

    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(StopError):
        LEARNERS[name](replace(step, checkpoint=file, progress=stop))
    resumed = LEARNERS[name](replace(step, checkpoint=file))
    for other in (again.network.state_dict(), resumed.network.state_dict()):
        assert all(torch.equal(value, other[key]) for key, value in once.network.state_dict().items())
    assert not file.exists()
