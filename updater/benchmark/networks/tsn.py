"""TSN: a few frames, one of each segment of a video, and the mean of what is said of each.

Wang et al. 2016, "Temporal segment networks: Towards good practices for deep action recognition", section
3.1: three segments, in training a frame by chance of each.
"""

from updater.benchmark.networks.frames import Frames

SEGMENTS = 3


class TSN(Frames):
    """float32 RGB [B, 3, 3, S, S], 0..1, a frame of each segment → float32 logits [B, K]."""
