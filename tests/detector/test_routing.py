import math
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from detector.serving.rollout import Route, in_share

IDS = st.builds(
    lambda topic, partition, offset: f"{topic}-{partition}-{offset}", st.text(), ints := st.integers(0), ints
)
SHARES = st.floats(0, 1)


@given(IDS, SHARES, SHARES)
def test_a_larger_share_holds_all_of_a_smaller_one(item_id: str, one: float, other: float) -> None:
    assert in_share(item_id, min(one, other)) <= in_share(item_id, max(one, other))


def test_an_id_has_the_same_place_in_every_process_and_version() -> None:
    taken = [offset for offset in range(12) if in_share(f"forgewatch.media-0-{offset}", 0.25)]
    assert taken == [2, 3, 5]


@given(IDS)
def test_no_share_takes_none_and_the_whole_takes_all(item_id: str) -> None:
    assert not in_share(item_id, 0.0)
    assert in_share(item_id, 1.0)


@settings(max_examples=50, derandomize=True)
@given(st.text(max_size=20), st.integers(0, 500), SHARES)
def test_a_share_is_taken_within_binomial_bounds(topic: str, partition: int, share: float) -> None:
    count = 4000
    taken = sum(in_share(f"{topic}-{partition}-{offset}", share) for offset in range(count))
    assert abs(taken - count * share) <= 5 * math.sqrt(count * share * (1 - share)) + 1


def test_a_route_gives_the_canary_its_share_and_the_stable_release_the_rest() -> None:
    stable: Any = SimpleNamespace(digest="a" * 64)
    canary: Any = SimpleNamespace(digest="b" * 64)
    ids = [f"media-0-{offset}" for offset in range(500)]
    route = Route(stable, canary, 0.3)
    assert [route.pick(each) is canary for each in ids] == [in_share(each, 0.3) for each in ids]
    assert set(route.releases) == {stable.digest, canary.digest}
    assert {id(Route(stable).pick(each)) for each in ids} == {id(stable)}
    assert {id(Route(stable, canary, 0.0).pick(each)) for each in ids} == {id(stable)}
