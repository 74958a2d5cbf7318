"""Every learner of the table on the smallest stream of two steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from detector.model.scores import NetworkOutput
from detector.release.manifest import Architecture
from updater.benchmark.continual.presets import CLOSED_FORM, PRESETS
from updater.benchmark.learners import ccil, lrcil
from updater.benchmark.learners.foster import balanced_distillation
from updater.benchmark.learners.methods import LEARNERS
from updater.benchmark.rejection.energy_margins import PUBLISHED, WEIGHT, energy_loss
from updater.training.crop_rows import backbone_rows, classify_items, forensic_rows
from updater.training.loop import Batch, training_set
from updater.training.losses import distillation, soft_cross_entropy
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
CPU = torch.device("cpu")
RECIPE = replace(FIRST, backbone_steps=2, balanced_steps=3, batch=8, pseudo_share=0.2)
BY_STEPS = [name for name in LEARNERS if name not in CLOSED_FORM]
CLASSES = ("a/real", "a/blocky", "b/real", "b/striped")


@pytest.fixture(scope="module")
def features(labelled):
    """The two steps' items with their forensic features, which no learner changes."""
    from detector.model.network import Network

    with torch.random.fork_rng(devices=[]):
        network = Network(TINY, 2)
    first = labelled({"a/real": 4, "a/blocky": 4})
    both = labelled({"a/real": 2, "a/blocky": 2, "b/real": 4, "b/striped": 4}, seed=1)
    return [replace(one, crop_features=forensic_rows(network, one.crops, CPU)) for one in (first, both)]


def steps(features, options):
    first, second = features
    one = Step(first, CLASSES[:2], TINY, options=options, recipe=RECIPE, seed=1)
    return one, lambda learnt: replace(one, train=second, classes=CLASSES, previous=learnt, seed=2)


class StopError(Exception):
    pass


def logits(learnt, items):
    network = learnt.network
    rows = backbone_rows(network, items.crops, CPU)
    return classify_items(network, rows, items.crop_features, items.starts).logits


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
def test_the_same_step_gives_the_same_network_if_interrupted_too(name, through_both, tmp_path, monkeypatch):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 1)
    step, once = through_both(name, Options())
    stages = []
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


# One step on fixed tensors, against the formulas that OpenCIL's published code has.
LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.3, 0.1, -0.7], [-1.2, 0.4, 3.0]], dtype=torch.float64)
TEACHER = torch.tensor([[1.0, 0.2], [-0.4, 0.9], [0.0, -2.0]], dtype=torch.float64)
TEMPERATURE = 2.0


def gradient(loss, logits=LOGITS):
    """How a step would move the logits, float64 [3, K]."""
    free = logits.clone().requires_grad_()
    torch.autograd.backward(loss(free))
    return free.grad


def published_distillation(logits, wanted):
    """The soft targets' cross-entropy at temperature 2, per item and without T^2."""
    log_said = logits / TEMPERATURE - torch.logsumexp(logits / TEMPERATURE, 1, keepdim=True)
    return -(wanted * log_said).sum() / len(logits)


def softened(logits):
    return (logits / TEMPERATURE).exp() / (logits / TEMPERATURE).exp().sum(1, keepdim=True)


def test_the_preset_of_icarl_distils_as_its_code_does():
    options = PRESETS["opencil-icarl"].options
    assert options["learner"] == "softmax-rehearsal"
    ours = gradient(lambda logits: options["distillation"] * distillation(logits[:, :2], TEACHER))
    theirs = gradient(lambda logits: published_distillation(logits[:, :2], softened(TEACHER)))
    torch.testing.assert_close(ours, theirs)


def test_the_distillation_of_bic_and_wa_is_its_codes():
    ours = soft_cross_entropy(LOGITS[:, :2], TEACHER)
    assert ours.item() == pytest.approx(published_distillation(LOGITS[:, :2], softened(TEACHER)).item())


def test_fosters_compression_is_its_codes():
    weight = torch.tensor([1.4, 0.6], dtype=torch.float64)
    wanted = softened(TEACHER) * weight
    wanted = wanted / wanted.sum(1, keepdim=True)
    student = LOGITS[:, 1:]
    ours = gradient(lambda logits: balanced_distillation(logits, TEACHER, weight), student)
    torch.testing.assert_close(ours, gradient(lambda logits: published_distillation(logits, wanted), student))


def test_the_hinges_of_ber_vos_and_npos_are_its_codes():
    new, old, beyond = LOGITS, LOGITS.flip(0) * 12, LOGITS + 7
    theirs = (
        0.1 * F.relu(-torch.logsumexp(new, 1) + 27).square().mean()
        + 0.1 * F.relu(-torch.logsumexp(old, 1) + 27).square().mean()
        + 0.1 * F.relu(-5 + torch.logsumexp(beyond, 1)).square().mean()
    )
    assert (WEIGHT * energy_loss(new, old, beyond, PUBLISHED)).item() == pytest.approx(theirs.item())


# Rows of items 0 to 5: an exemplar of each old class, and two items of each new one, the first an exemplar.
CCIL_LOGITS = torch.tensor(
    [
        [1.5, -0.3, 0.2, 0.4, -0.2, 0.7, 1.3, -0.9, 0.3, -1.2, 2.0, 0.5],
        [0.6, 0.6, 0.1, -1.0, 1.1, 0.4, -0.6, 0.9, 0.0, 0.9, -0.8, 1.2],
    ]
).reshape(6, 4)
CCIL_TEACHER = torch.tensor([[2.0, -0.5], [0.3, 0.1], [0.1, 0.8], [-0.9, 1.4], [-1.0, 0.6], [0.2, 0.2]])


@pytest.mark.parametrize(
    ("weight", "smoothing", "released"),
    [(1.0, 0, 4.283485), (0.3, 0, 2.003575), (0.0, 0, 1.026472), (0.3, 0.1, 2.079825)],
)
def test_ccils_loss_is_its_codes(weight, smoothing, released, labelled, through_both, monkeypatch):
    step, _ = through_both("ccil", Options())
    train = labelled({"a/real": 1, "a/blocky": 1, "b/real": 2, "b/striped": 2})
    options = Options(distillation=weight, exposure="none")
    step = replace(step, train=train, options=options, recipe=replace(RECIPE, label_smoothing=smoothing))

    def said(logits):
        return NetworkOutput(logits, *torch.zeros(3, 6, 1))

    monkeypatch.setattr(ccil, "teacher_output", lambda *given: lambda batch: said(CCIL_TEACHER))
    items, target = torch.arange(6), torch.tensor([0, 1, 2, 2, 3, 3])
    batch = Batch(said(CCIL_LOGITS), items, target, items.numpy())
    loss = ccil.loss_of(step, training_set(step, step.previous.network))
    assert loss(batch).item() == pytest.approx(released, abs=1e-5)
    if not weight:  # of a mixed batch each label counts by its share
        both = 0.7 * loss(batch) + 0.3 * loss(replace(batch, items=items.flip(0), target=target.flip(0)))
        assert loss(replace(batch, mixed=0.7)).item() == pytest.approx(both.item())


@pytest.mark.parametrize("name", ["icarl", "bic", "wa", "foster"])
def test_what_differs_is_named_beside_each_preset(name):
    small, large = PRESETS[f"opencil-{name}"].differs, PRESETS[f"opencil-imagenet-{name}"].differs
    for differs in (small, large):
        assert any("pictures are mixed" in difference["text"] for difference in differs)
        assert any("clipped" in difference["text"] for difference in differs)


LRCIL_RECIPE = replace(FIRST, backbone_steps=4, balanced_steps=4, batch=8, pseudo_share=0.2)
LRCIL_OLD = ("a/real", "a/blocky")
LRCIL_CLASSES = (*LRCIL_OLD, "b/real", "b/striped")


def joined(one, other):
    """Two sets of items in one."""
    return replace(
        one,
        **{of: getattr(one, of) + getattr(other, of) for of in ("ids", "families", "sources", "groups")},
        crops=np.concatenate([one.crops, other.crops]),
        starts=np.concatenate([one.starts, one.starts[-1] + other.starts[1:]]),
    )


@pytest.fixture(scope="module")
def items(labelled):
    return labelled({"a/real": 4, "a/blocky": 4}), labelled({"b/real": 4, "b/striped": 4}, seed=1)


@pytest.fixture(scope="module")
def first(items):
    return lrcil.learn(Step(items[0], LRCIL_OLD, TINY, recipe=LRCIL_RECIPE, seed=1))


def update(items, first, **changes):
    exemplars = items[0].take([0, 1, 4])
    step = Step(joined(exemplars, items[1]), LRCIL_CLASSES, TINY, first, recipe=LRCIL_RECIPE, seed=2)
    return replace(step, **changes)


def test_latents_are_the_rows_of_the_time(items, first):
    train = items[0]
    parts = backbone_rows(first.network, train.crops, CPU), forensic_rows(first.network, train.crops, CPU)
    rows, features = map(torch.from_numpy, parts)
    for number, one in enumerate(train.ids):
        assert torch.allclose(first.kept[f"rows.{one}"], rows[2 * number : 2 * number + 2], atol=1e-5)
        assert torch.allclose(first.kept[f"features.{one}"], features[2 * number : 2 * number + 2], atol=1e-4)


def test_an_update_never_looks_at_the_exemplars_crops_and_keeps_their_latents(items, first):
    step = update(items, first)
    once = lrcil.learn(step)
    blind = replace(step.train, crops=step.train.crops.copy())
    blind.crops[:6] = 0
    other = lrcil.learn(replace(step, train=blind)).network.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in once.network.state_dict().items())
    assert {name.partition(".")[2] for name in once.kept} == set(step.train.ids)
    for one in step.train.ids[:3]:
        assert torch.equal(once.kept[f"rows.{one}"], first.kept[f"rows.{one}"])
    new = step.train.ids[3]
    rows = torch.from_numpy(backbone_rows(once.network, step.train.crops[6:8], CPU))
    assert torch.allclose(once.kept[f"rows.{new}"], rows, atol=1e-5)


def test_the_latents_reach_the_head_and_every_class_weighs_the_same(items, first):
    stored = lrcil.latents(update(items, first))
    assert stored.ids == items[0].take([0, 1, 4]).ids
    assert stored.target.tolist() == [0, 0, 0, 0, 1, 1]
    assert stored.weight.tolist() == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    assert torch.equal(stored.rows[4:], first.kept[f"rows.{items[0].ids[4]}"])


def test_what_is_stored_nowhere_is_learnt_as_media(items, first):
    bare = replace(first, kept={})
    assert lrcil.latents(update(items, bare)) is None
    assert {f"rows.{of}" for of in items[0].take([0, 1, 4]).ids} <= set(lrcil.learn(update(items, bare)).kept)


def test_layers_below_learn_slower_and_their_normalisation_not_at_all(items, first):
    recipe = replace(LRCIL_RECIPE, balanced_steps=0, weight_decay=0.0)
    learnt = lrcil.learn(update(items, first, recipe=recipe)).network
    before, after = first.network.state_dict(), learnt.state_dict()
    shared = [name for name, value in before.items() if value.ndim and not name.startswith("head.")]
    moved = {name: (after[name] - before[name]).abs().max().item() for name in shared}
    norms = [name for name in moved if ".bn" in name]
    below = [by for name, by in moved.items() if name.startswith("backbone.") and ".bn" not in name]
    assert norms
    assert max(moved[name] for name in norms) == 0
    # One step of Adam moves a weight by about its rate.
    assert 0 < max(below) < 0.3 * moved["project.0.weight"]


def test_distillation_holds_the_replayed_logits(items, first):
    exemplars = [first.kept[f"rows.{one}"] for one in items[0].take([0, 1, 4]).ids]
    features = [first.kept[f"features.{one}"] for one in items[0].take([0, 1, 4]).ids]

    def moved(weight):
        recipe = replace(LRCIL_RECIPE, backbone_steps=0, balanced_steps=60)
        options = Options(distillation=weight, exposure="none")
        learnt = lrcil.learn(update(items, first, options=options, recipe=recipe)).network
        with torch.no_grad():
            rows = torch.cat(exemplars), torch.cat(features)
            old, new = (network.classify(*rows).logits for network in (first.network, learnt))
        return (torch.softmax(new[:, :2], 1) - torch.softmax(old, 1)).abs().mean()

    assert moved(30.0) < 0.7 * moved(0.0)
