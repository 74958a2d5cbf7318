"""The table of a release's life, and the fold of any history by it."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.release_records import STATES, Action
from deploy.releases import standing
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.standing import TRANSITIONS, Consequence, LedgerState, next_state, replay

ALL_VERBS = (*get_args(Action), *get_args(Consequence))
WISHES = st.lists(
    st.tuples(
        st.sampled_from(("propose", "approve", "promote", "reject", "rollback")),
        st.sampled_from(("a" * 64, "b" * 64, "c" * 64)),
    ),
    max_size=20,
)
NewHistory = Callable[..., Any]
"""Makes a conftest.History of wishes."""


def test_every_state_has_a_sentence_and_is_reached_from_nothing_by_the_table() -> None:
    assert all(sentence.endswith(".") for sentence in STATES.values())
    reached, size = {None}, 0
    while len(reached) > size:
        size = len(reached)
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == {None, *STATES}


@given(st.lists(st.sampled_from(ALL_VERBS), max_size=30))
def test_every_sequence_of_moves_ends_in_a_state_of_the_table(verbs: list[Any]) -> None:
    state = None
    for verb in verbs:
        if (state, verb) in TRANSITIONS:
            state = next_state(state, verb)
            assert state in STATES
        else:
            with pytest.raises(ApprovalError):
                next_state(state, verb)


@given(WISHES, WISHES, st.data())
def test_to_go_on_from_what_was_folded_is_the_same_as_to_fold_from_the_first(
    new_history: NewHistory, some: Any, others: Any, data: st.DataObject
) -> None:
    """Whatever was folded before: the same history, a part of it, or another one."""
    histories = [new_history(*wishes).events for wishes in (some, others)]
    for _ in range(5):
        events = data.draw(st.sampled_from(histories))
        events = events[: data.draw(st.integers(0, len(events)))]
        anew = standing.apply(LedgerState(), events)
        assert replay(events) == anew
        assert list(replay(events).releases) == list(anew.releases)
