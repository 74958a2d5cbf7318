import math

import pytest
from pydantic import ValidationError

from detector.gate import GateParameters, Standard, decide

UNIT = Standard(median=0, scale=1)
GATE = GateParameters(
    temperature=1,
    energy=UNIT,
    pseudo=UNIT,
    novelty=UNIT,
    embedding_novelty=UNIT,
    trace_novelty=UNIT,
    clip=6,
    unknown_threshold=4,
    fake_threshold=0.6,
)


@pytest.mark.parametrize(
    ("unknown_score", "fake_probability", "label"),
    [
        (4.1, 0.0, "unknown"),
        (4.1, 1.0, "unknown"),
        (4.0, 0.61, "fake"),
        (4.0, 0.6, "real"),
        (-9, 0.0, "real"),
    ],
)
def test_unknown_comes_before_fake_and_a_threshold_is_not_above_itself(
    unknown_score: float, fake_probability: float, label: str
) -> None:
    assert decide(unknown_score, fake_probability, GATE) == label


def test_a_gate_survives_its_manifest() -> None:
    assert GateParameters.model_validate_json(GATE.model_dump_json()) == GATE


@pytest.mark.parametrize(
    "broken",
    [
        {"temperature": 0},
        {"unknown_threshold": math.nan},
        {"fake_threshold": 1.5},
        {"weights": (0, 0, 0)},
        {"weights": (1, -1, 2)},
        {"energy": {"median": 0, "scale": 0}},
    ],
)
def test_a_gate_that_cannot_decide_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GateParameters.model_validate(GATE.model_dump() | broken)
