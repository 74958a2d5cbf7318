import math

import pytest
from pydantic import ValidationError

from detector.release.gate import GateParameters, Term, decide

GATE = GateParameters(
    terms={name: Term(median=0, scale=1, weight=2) for name in ("energy", "novelty")},
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


def test_videos_are_unknown_from_a_threshold_of_their_own_where_there_is_one() -> None:
    own = GATE.model_copy(update={"video_unknown_threshold": 9.0})
    for gate, above in ((GATE, 4.0), (own, 9.0)):
        assert gate.unknown_above(video=True) == above
        assert decide(above + 0.1, 0.0, gate, video=True) == "unknown"
        assert decide(above, 0.0, gate, video=True) == "real"
        assert decide(4.1, 0.0, gate) == "unknown"


def test_a_video_that_is_less_familiar_than_a_picture_may_be_is_not_called_fake() -> None:
    own = GATE.model_copy(update={"video_unknown_threshold": 9.0})
    assert decide(4.0, 1.0, own, video=True) == "fake"
    assert decide(4.1, 1.0, own, video=True) == "unknown"
    assert decide(4.1, 0.0, own, video=True) == "real"


def test_a_gate_survives_its_manifest() -> None:
    read = GateParameters.model_validate_json(GATE.model_dump_json())
    assert read == GATE
    assert list(read.terms) == list(GATE.terms)


@pytest.mark.parametrize(
    "broken",
    [
        {"clip": 0},
        {"unknown_threshold": math.nan},
        {"video_unknown_threshold": 3.9},
        {"fake_threshold": 1.5},
        {"terms": {}},
        {"terms": {"energy": {"median": 0, "scale": 1, "weight": 0}}},
        {"terms": {"energy": {"median": 0, "scale": 1, "weight": -1}}},
        {"terms": {"energy": {"median": 0, "scale": 0, "weight": 1}}},
        {"energy": {"median": 0, "scale": 1}},
    ],
)
def test_a_gate_that_cannot_decide_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GateParameters.model_validate(GATE.model_dump() | broken)


def test_a_gate_that_was_written_before_surroundings_were_known_knows_none() -> None:
    older = {name: value for name, value in GATE.model_dump().items() if name != "surroundings"}
    assert GateParameters.model_validate(older) == GATE
    assert not GATE.surroundings
