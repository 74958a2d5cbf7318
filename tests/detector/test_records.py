import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from detector.records import Rollout

SAID = {"ledger": "0" * 32, "epoch": 0, "sequence": 3, "stable": "a" * 64}


@pytest.mark.parametrize(
    "wrong",
    [
        {"stable": "/home/somebody"},
        {"stable": "../" + "a" * 61},
        {"stable": "A" * 64},
        {"stable": "a" * 64 + "\n"},
        {"stable": "a" * 63},
        {"canary": "/home/somebody"},
        {"previous": ""},
        {"ledger": "a" * 31},
        {"epoch": -1},
        {"sequence": -1},
        {"canary": "b" * 64, "canary_share": 1.5},
        {"canary": "b" * 64, "canary_share": float("nan")},
        {"canary_share": 0.5},
    ],
)
def test_a_rollout_names_digests_and_nothing_else(wrong: dict[str, object]) -> None:
    Rollout.model_validate(SAID)
    with pytest.raises(ValidationError):
        Rollout.model_validate(SAID | wrong)


@pytest.mark.slow
@given(st.text())
def test_no_other_text_passes_for_a_digest(text: str) -> None:
    with pytest.raises(ValidationError):
        Rollout.model_validate(SAID | {"stable": text})


def test_a_record_of_a_version_without_ledger_ids_is_no_rollout() -> None:
    earlier = {"slot": "stable", "stable": "a" * 64, "previous": None, "sequence": 3}
    with pytest.raises(ValidationError, match="ledger"):
        Rollout.model_validate_json(json.dumps(earlier))


def test_a_rollout_survives_the_topic() -> None:
    rollout = Rollout.model_validate(SAID | {"canary": "b" * 64, "canary_share": 0.1, "previous": "c" * 64})
    assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout
