"""One step on fixed tensors, against the formulas that OpenCIL's published code has."""

import pytest
import torch
import torch.nn.functional as F

from updater.benchmark.continual.presets import PRESETS
from updater.benchmark.learners.foster import balanced_distillation
from updater.benchmark.rejection.energy_margins import PUBLISHED, WEIGHT, energy_loss
from updater.training.losses import distillation, soft_cross_entropy

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


def test_fosters_compression_is_four_times_its_codes_as_the_preset_says():
    weight = torch.tensor([1.4, 0.6], dtype=torch.float64)
    wanted = softened(TEACHER) * weight
    wanted = wanted / wanted.sum(1, keepdim=True)
    student = LOGITS[:, 1:]
    ours = gradient(lambda logits: balanced_distillation(logits, TEACHER, weight), student)
    theirs = gradient(lambda logits: published_distillation(logits, wanted), student)
    torch.testing.assert_close(ours, 4 * theirs)
    assert any("T^2 = 4" in difference for difference in PRESETS["opencil-foster"].differs)


def test_the_hinges_of_ber_vos_and_npos_are_its_codes():
    new, old, beyond = LOGITS, LOGITS.flip(0) * 12, LOGITS + 7
    theirs = (
        0.1 * F.relu(-torch.logsumexp(new, 1) + 27).square().mean()
        + 0.1 * F.relu(-torch.logsumexp(old, 1) + 27).square().mean()
        + 0.1 * F.relu(-5 + torch.logsumexp(beyond, 1)).square().mean()
    )
    assert (WEIGHT * energy_loss(new, old, beyond, PUBLISHED)).item() == pytest.approx(theirs.item())


@pytest.mark.parametrize("name", ["icarl", "bic", "wa", "foster"])
def test_what_differs_is_named_beside_each_preset(name):
    small, large = PRESETS[f"opencil-{name}"].differs, PRESETS[f"opencil-imagenet-{name}"].differs
    for differs in (small, large):
        assert any("pictures are mixed" in difference for difference in differs)
        assert any("clipped" in difference for difference in differs)
