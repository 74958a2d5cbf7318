import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_ood.detector import EnergyBased

from detector.model.scores.energy import energy

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=6)


def test_energy_is_minus_t_logsumexp() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert energy(logits).item() == pytest.approx(-math.log(4))
    assert energy(logits, 2.0).item() == pytest.approx(-2 * math.log(1 + math.sqrt(3)))


@given(LOGITS, st.floats(-5, 5, width=32))
def test_raising_every_logit_lowers_the_energy_as_much(row: list[float], shift: float) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    assert energy(logits + shift).item() == pytest.approx(energy(logits).item() - shift, abs=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_energy_agrees_with_pytorch_ood(temperature: float) -> None:
    logits = 3 * torch.randn(20, 3, dtype=torch.float64)
    assert torch.allclose(energy(logits, temperature), EnergyBased.score(logits, temperature))
