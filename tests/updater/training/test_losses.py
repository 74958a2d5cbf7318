import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from detector.model.scores import NetworkOutput
from detector.release.manifest import Architecture
from updater.benchmark.continual.scoring import fake_by_maxima
from updater.benchmark.learners import bias_correction
from updater.training import losses, schemes
from updater.training.loop import Batch, TrainingSet
from updater.training.losses import classification
from updater.training.step import FIRST, Options, Step


def test_soft_cross_entropy_is_the_divergence_and_the_teachers_entropy():
    logits, teacher = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[2.0, 0.0, 1.0]])
    q = torch.softmax(teacher / 2, 1)[0]
    entropy = -(q * q.log()).sum().item()
    divergence = losses.soft_cross_entropy(logits, teacher, divergence=True).item()
    assert losses.soft_cross_entropy(logits, teacher).item() == pytest.approx(divergence + entropy)
    by_hand = -sum(q[i].item() * torch.log_softmax(logits / 2, 1)[0, i].item() for i in range(3))
    assert losses.soft_cross_entropy(logits, teacher).item() == pytest.approx(by_hand, rel=1e-5)


def test_soft_cross_entropy_moves_every_old_logit():
    logits = torch.zeros(2, 3, requires_grad=True)
    torch.autograd.backward(losses.soft_cross_entropy(logits, torch.tensor([[3.0, 1, 0], [0, 2, 5.0]])))
    assert (logits.grad != 0).all()


@pytest.mark.parametrize(("weight", "share"), [(1.0, 2 / 3), (0.5, 1 / 3), (9.0, 1.0)])
def test_keeping_weighs_as_old_classes_among_all(weight, share, monkeypatch):
    wanted = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    monkeypatch.setattr(bias_correction, "teacher_logits", lambda step, data: wanted)
    step = SimpleNamespace(options=Options(distillation=weight), old=("a", "b"), classes=("a", "b", "c"))
    logits = torch.tensor([[0.0, 1.0, 5.0]])
    batch = SimpleNamespace(output=SimpleNamespace(logits=logits), items=torch.tensor([1]))
    kept = losses.soft_cross_entropy(logits[:, :2], wanted[1:]).item()
    value = bias_correction.interpolate(lambda batch: torch.tensor(7.0), step, None)(batch).item()
    assert value == pytest.approx((1 - share) * 7 + share * kept, rel=1e-5)
    assert math.isfinite(value)


def test_the_first_step_has_nothing_to_keep():
    step = SimpleNamespace(options=Options(), old=(), classes=("a",))
    assert bias_correction.interpolate(lambda batch: torch.tensor(7.0), step, None)(None).item() == 7


@pytest.mark.parametrize("name", ["all", "exemplars"])
def test_what_is_distilled_is_every_item_or_those_of_old_classes_alone(name):
    step = SimpleNamespace(
        options=Options(distilled=name),
        old=("a/real", "a/fake"),
        train=SimpleNamespace(families=("b/fake", "a/real", "b/real", "a/fake")),
        device=torch.device("cpu"),
    )
    data = SimpleNamespace(targets=[1, 0, 0, 1, 2, 2])  # two logits for all, and two pseudo-forgeries
    rows = losses.distilled_items(step, data)
    found = torch.arange(5)[rows(SimpleNamespace(items=torch.tensor([5, 3, 0, 1, 2])))].tolist()
    assert found == ([0, 1, 2, 3, 4] if name == "all" else [1, 3])


def test_distillation_over_exemplars_is_their_mean_by_hand_and_nothing_without_any(monkeypatch):
    # Of an exemplar the teacher says 1/4 and 3/4, the student a half each; of the new item they differ more.
    wanted = torch.tensor([[0.0, 2 * math.log(3)], [9.0, -9.0]])
    monkeypatch.setattr(bias_correction, "teacher_logits", lambda step, data: wanted)
    step = SimpleNamespace(
        options=Options(distilled="exemplars", scheme="bc"),
        old=("a",),
        classes=("a", "b"),
        train=SimpleNamespace(families=("a", "b")),
        device=torch.device("cpu"),
    )
    loss = bias_correction.interpolate(lambda batch: torch.tensor(0.0), step, SimpleNamespace(targets=[0, 1]))
    logits = torch.zeros(2, 2, requires_grad=True)

    def value(items):
        return loss(SimpleNamespace(output=SimpleNamespace(logits=logits[items]), items=torch.tensor(items)))

    # lambda = 1/2; the cross-entropy of a half with anything is log 2, at temperature 2 too.
    assert value([0, 1]).item() == pytest.approx(math.log(2) / 2, rel=1e-5)
    torch.autograd.backward(value([0, 1]))
    assert logits.grad[0].tolist() == pytest.approx([(1 / 2 - 1 / 4) / 4, (1 / 2 - 3 / 4) / 4], rel=1e-4)
    assert logits.grad[1].tolist() == [0, 0]
    assert value([1]).item() == 0


# Two real classes, two fake ones; the numbers below are worked from these four logits.
FAKE = torch.tensor([False, True, False, True])
LOGITS = torch.tensor([[2.0, -1.0, 0.5, 1.0]])
EXP = [math.exp(z) for z in (2.0, -1.0, 0.5, 1.0)]
G = [e / sum(EXP) for e in EXP]
S = [1 / (1 + math.exp(-z)) for z in (2.0, -1.0, 0.5, 1.0)]


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def ratio(real, fake):
    return real / (real + fake), fake / (real + fake)


BY_HAND = {
    "sumlog": tuple(-r for r in ratio(math.log(S[0]) + math.log(S[2]), math.log(S[1]) + math.log(S[3]))),
    "sumlogit": tuple(math.log(r) for r in ratio(S[0] + S[2], S[1] + S[3])),
    "sumfeat": (
        (math.log(sigmoid(S[0] + S[2])) + math.log(1 - sigmoid(S[1] + S[3]))) / 2,
        (math.log(sigmoid(S[1] + S[3])) + math.log(1 - sigmoid(S[0] + S[2]))) / 2,
    ),
    "max": tuple(math.log(r) for r in ratio(S[0], S[3])),
}
PUBLISHED = {"sumlogit": ratio(S[0] + S[2], S[1] + S[3]), "max": ratio(S[0], S[3])}
PUBLISHED["sumfeat"] = (sigmoid(S[0] + S[2]), sigmoid(S[1] + S[3]))
for name, sides in PUBLISHED.items():
    each = [(math.log(sigmoid(one)), math.log(1 - sigmoid(one))) for one in sides]
    BY_HAND[f"{name}-twice"] = ((each[0][0] + each[1][1]) / 2, (each[1][0] + each[0][1]) / 2)


@pytest.mark.parametrize("aggregate", BY_HAND)
def test_the_two_scores_are_those_worked_by_hand(aggregate):
    scores = schemes.binary_scores(LOGITS, FAKE, aggregate)
    assert scores.shape == (1, 2)
    assert scores[0].tolist() == pytest.approx(BY_HAND[aggregate], rel=1e-5)


@pytest.mark.parametrize("aggregate", BY_HAND)
@pytest.mark.parametrize("target", [0, 1])
def test_gradients_reach_every_logit_that_the_formula_names(aggregate, target):
    logits = LOGITS.clone().requires_grad_()
    options = Options(scheme="mt", aggregate=aggregate)
    # An entropy without a gradient leaves that of the binary loss.
    loss = schemes.class_loss(logits, torch.tensor([target]), FAKE, options, lambda z, _: z.sum() * 0)
    torch.autograd.backward(loss)
    named = torch.tensor([[True, False, False, True]]) if "max" in aggregate else torch.ones(1, 4) > 0
    assert torch.equal(logits.grad != 0, named)


@pytest.mark.parametrize("aggregate", BY_HAND)
def test_the_binary_loss_falls_as_the_true_side_rises(aggregate):
    for target, side in ((0, ~FAKE), (1, FAKE)):
        logits = LOGITS.clone().requires_grad_()
        torch.autograd.backward(-schemes.binary_scores(logits, FAKE, aggregate)[0, target])
        steeper = LOGITS - 0.01 * logits.grad
        before, after = (schemes.binary_scores(one, FAKE, aggregate)[0, target] for one in (LOGITS, steeper))
        assert after > before
        assert (logits.grad[0, side] <= 0).any()


@pytest.mark.parametrize("share", [0.3, 0.1, 0.9])
def test_multi_task_is_the_stated_share_of_both_losses(share):
    target, options = torch.tensor([3]), Options(scheme="mt", aggregate="sumlogit", binary_share=share)
    expected = (share - 1) * math.log(G[3]) - share * BY_HAND["sumlogit"][1]
    assert schemes.class_loss(LOGITS, target, FAKE, options).item() == pytest.approx(expected, rel=1e-5)


def test_binary_and_multi_class_are_the_cross_entropy():
    for scheme in ("bc", "mc"):
        value = schemes.class_loss(LOGITS, torch.tensor([2]), FAKE, Options(scheme=scheme))
        assert value.item() == pytest.approx(-math.log(G[2]), rel=1e-5)


def test_pseudo_forgeries_take_part_in_the_entropy_and_in_neither_sum():
    logits = torch.cat([LOGITS, torch.tensor([[3.0]])], 1).repeat(2, 1)
    value = schemes.class_loss(logits, torch.tensor([0, 4]), FAKE, Options(scheme="mt", aggregate="sumlogit"))
    entropy = cross_entropy(logits, torch.tensor([0, 4]))
    assert value.item() == pytest.approx(0.7 * entropy.item() - 0.3 * BY_HAND["sumlogit"][0], rel=1e-5)


@pytest.mark.parametrize("aggregate", BY_HAND)
def test_classes_all_of_one_side_have_no_binary_loss(aggregate):
    options = Options(scheme="mt", aggregate=aggregate)
    value = schemes.class_loss(LOGITS, torch.tensor([0]), torch.zeros(4, dtype=torch.bool), options)
    assert value.item() == pytest.approx(-0.7 * math.log(G[0]), rel=1e-5)


def test_binary_classes_are_real_and_fake_whatever_the_families():
    names = ("a/real", "a/fake", "real", "blur")
    binary = Options(scheme="bc")
    assert schemes.columns(names, binary) == ("real", "fake")
    assert schemes.targets(names, names, binary) == [0, 1, 0, 1]
    assert schemes.columns(names, replace(binary, scheme="mc")) == names
    assert schemes.targets(names[::-1], names, replace(binary, scheme="mt")) == [3, 2, 1, 0]
    assert schemes.fake_columns(names).tolist() == [False, True, False, True]


def test_the_probability_of_fake_is_the_mass_on_the_fake_logits():
    assert schemes.fake_probability(LOGITS, FAKE).item() == pytest.approx(G[1] + G[3], rel=1e-5)


def test_cddbs_probability_is_the_largest_fake_output_of_the_two_largest():
    # G is in the ratio e^2 : e^-1 : e^0.5 : e^1; the largest real is the first, the largest fake the last.
    assert fake_by_maxima(LOGITS, FAKE).item() == pytest.approx(G[3] / (G[3] + G[0]), rel=1e-5)
    of_maxima, of_mass = fake_by_maxima(LOGITS, FAKE), schemes.fake_probability(LOGITS, FAKE)
    assert of_maxima.item() != pytest.approx(of_mass.item(), rel=0.01)


def test_with_two_logits_the_two_probabilities_of_fake_are_one():
    two, fake = LOGITS[:, :2], FAKE[:2]
    assert torch.allclose(fake_by_maxima(two, fake), schemes.fake_probability(two, fake))


@pytest.mark.parametrize(("all_are", "wanted"), [(True, 1.0), (False, 0.0)])
def test_among_logits_of_one_side_every_item_is_of_that_side(all_are, wanted):
    assert fake_by_maxima(LOGITS, torch.full((4,), all_are)).item() == wanted


OUTPUT = NetworkOutput(LOGITS.repeat(3, 1), torch.tensor([3, -1, 0.5]), torch.zeros(3, 2), torch.zeros(3, 0))
TARGET = torch.tensor([0, 2, 4])


@pytest.mark.parametrize("exposure", ["none", "class", "outliers"])
def test_the_loss_reads_pseudo_forgeries_as_the_exposure_says(exposure, labelled):
    classes = ("real", "blocky", "b/real", "striped")
    step = Step(
        labelled(dict.fromkeys(classes, 1)),
        classes,
        Architecture(backbone="none"),
        options=Options(exposure=exposure),
        recipe=replace(FIRST, label_smoothing=0.0),
    )
    data = TrainingSet(TARGET.numpy(), FAKE, None, None, torch.zeros(3, 0))
    loss, batch = classification(step, data), Batch(OUTPUT, TARGET, TARGET, TARGET)
    known = cross_entropy(OUTPUT.logits[:2], TARGET[:2]).item()
    energy = -math.log(sum(EXP))
    expected = {
        "none": known,
        "class": cross_entropy(torch.cat([OUTPUT.logits, OUTPUT.pseudo_logit[:, None]], 1), TARGET).item(),
        # All three have one energy, so that the pseudo-forgery is five below its margin.
        "outliers": known + 0.1 * (5 + energy - energy) ** 2,
    }
    assert loss(batch).item() == pytest.approx(expected[exposure], rel=1e-5)
    # Of a mixed batch both labels count by their shares (Zhang et al. 2018, eq. 1).
    both = [loss(replace(batch, target=target)).item() for target in (TARGET, TARGET.flip(0))]
    assert loss(replace(batch, mixed=0.25)).item() == pytest.approx(0.25 * both[0] + 0.75 * both[1], rel=1e-5)
