from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.serving import pause as pause_module
from detector.serving.pause import Pause


@given(st.floats(0.001, 10), st.floats(0.001, 1000), st.integers(1, 200))
def test_pauses_double_up_to_the_longest(first_s: float, max_s: float, failures: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(now=0.0)
        patch.setattr(pause_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
        patch.setattr(pause_module, "FIRST_PAUSE_S", first_s)
        pause = Pause()
        assert pause.due
        for failure in range(failures):
            began, expected = clock.now, min(max_s, first_s * 2.0 ** min(failure, 64))
            pause.failed(max_s)
            clock.now = began + expected * 0.99
            assert not pause.due
            clock.now = began + expected * 1.01
            assert pause.due
        pause.failed(max_s, long=True)
        clock.now += max_s * 0.99
        assert not pause.due
        pause.rest(0.0)
        assert pause.due
        assert pause.failures == 0
