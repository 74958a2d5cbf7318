import numpy as np
import pytest

from deploy.bench.swap_dip import dip


def test_a_steady_stream_has_no_dip() -> None:
    found = dip(list(np.arange(0, 60, 0.05)), 10, 40, per_second=20)
    assert (found.second, found.five, found.lasts_s) == (
        pytest.approx(0, abs=0.06),
        pytest.approx(0, abs=0.02),
        0,
    )


def test_a_stall_is_told_by_its_depth_and_by_how_long_it_lasts() -> None:
    due = np.arange(0, 60, 0.05)
    stalled = np.where((due >= 20) & (due < 22), 22, due)  # nothing for two seconds, then all of it
    found = dip(list(stalled), 10, 40, per_second=20)
    assert found.second == 1
    assert found.five == pytest.approx(0.4, abs=0.02)
    assert found.lasts_s == pytest.approx(2.9, abs=0.15)


def test_a_stall_outside_the_time_that_is_looked_at_does_not_count() -> None:
    due = np.arange(0, 60, 0.05)
    found = dip(list(np.where((due >= 45) & (due < 50), 50, due)), 10, 40, per_second=20)
    assert found.lasts_s == 0
