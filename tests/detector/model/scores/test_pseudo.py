import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detector.model.scores import pseudo
from detector.model.scores.score import NetworkOutput

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=6)


@given(LOGITS)
def test_the_pseudo_score_is_the_log_odds_of_the_last_class(row: list[float]) -> None:
    rows = torch.tensor([row], dtype=torch.float64)
    joint, nothing = torch.softmax(rows, 1)[0], torch.zeros(1, 0)
    found = pseudo.fit(None)(NetworkOutput(rows[:, :-1], rows[:, -1], nothing, nothing))
    expected = torch.log(joint[-1]) - torch.log(joint[:-1].sum())
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
