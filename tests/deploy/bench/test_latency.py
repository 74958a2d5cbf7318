import pytest

from deploy.bench.latency import summary


def test_the_slowest_hundredth_of_all_rounds_is_held_against_a_picture_alone() -> None:
    quick, slow = [20.0] * 200, [20.0] * 190 + [90.0] * 10
    found = summary([quick, slow], [8.0, 12.0], per_second=5)
    assert (found.items, found.p50_ms, found.p99_ms, found.p99s_ms) == (400, 20, 90, [20, 90])
    assert (found.alone_ms, found.ratio) == (10, pytest.approx(9))
