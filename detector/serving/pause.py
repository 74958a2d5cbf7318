"""When something that failed is tried again: after pauses that double up to a limit."""

import time

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
"""What fails for want of another process, which may come back at any time."""
REFUSED_PAUSE_S = 300.0
"""What was wrong, and will be until somebody mends it: each try costs a download."""


class Pause:
    """The pause before the next try of one thing; due at once as long as nothing failed."""

    def __init__(self) -> None:
        self.failures = 0
        self._until = 0.0

    @property
    def due(self) -> bool:
        """Whether it may be tried now."""
        return time.monotonic() >= self._until

    def failed(self, max_s: float, *, long: bool = False) -> None:
        """Wait twice as long as the time before, at most max_s seconds, or just so long."""
        pause_s = max_s if long else min(max_s, FIRST_PAUSE_S * 2.0 ** min(self.failures, 64))
        self.failures += 1
        self._until = time.monotonic() + pause_s

    def rest(self, pause_s: float) -> None:
        """Nothing failed: wait this long, and begin with the shortest pause when something does."""
        self.failures = 0
        self._until = time.monotonic() + pause_s
