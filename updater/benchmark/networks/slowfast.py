"""SlowFast: a pathway of many channels on few frames, and one of few channels on all of them.

Feichtenhofer et al. 2019, "SlowFast networks for video recognition", section 3 and table 1: alpha is how many
times more frames the fast pathway sees, beta its share of the channels. After the stem and each stage but
the last, what the fast one has goes to the slow one by a convolution of 5 frames with stride alpha and twice
the fast channels. ForgeryNet's has alpha 4, beta 1/8 and no non-local blocks.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from updater.benchmark.networks.residual3d import BLOCKS_50, EXPANSION, Stem, convolution, stage

_SLOW_TIMES, _FAST_TIMES = (1, 1, 3, 3), (3, 3, 3, 3)
_FUSED_FRAMES, _FUSED_TIMES = 5, 2


class SlowFast(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]. T is a multiple of alpha."""

    def __init__(self, classes: int, alpha: int = 4, inverse_beta: int = 8) -> None:
        super().__init__()
        self.alpha = alpha
        slow, fast, width = 64, 64 // inverse_beta, 64
        self.slow_stem, self.fast_stem = Stem(slow, time=1), Stem(fast, time=5)
        self.slow_stages, self.fast_stages = nn.ModuleList(), nn.ModuleList()
        self.lateral = nn.ModuleList()
        times = zip(BLOCKS_50, _SLOW_TIMES, _FAST_TIMES, strict=True)
        for number, (blocks, slow_time, fast_time) in enumerate(times):
            stride = 1 if number == 0 else 2
            self.lateral.append(convolution(fast, _FUSED_TIMES * fast, (_FUSED_FRAMES, 1, 1), (alpha, 1, 1)))
            into = slow + _FUSED_TIMES * fast
            self.slow_stages.append(stage(into, width, blocks, slow_time, stride))
            self.fast_stages.append(stage(fast, width // inverse_beta, blocks, fast_time, stride))
            slow, fast, width = EXPANSION * width, EXPANSION * width // inverse_beta, 2 * width
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(slow + fast, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes."""
        logits: Tensor = self.head(self.dropout(self.features(clips).mean(2)))
        return logits

    def features(self, clips: Tensor) -> Tensor:
        """Return [B, C, T / alpha]: both pathways' last channels, the fast one's a mean over its frames."""
        slow, fast = self.slow_stem(clips[:, :, :: self.alpha]), self.fast_stem(clips)
        for lateral, slow_stage, fast_stage in zip(
            self.lateral, self.slow_stages, self.fast_stages, strict=True
        ):
            across = F.relu(lateral(fast))
            slow, fast = slow_stage(torch.cat([slow, across], 1)), fast_stage(fast)
        own, other = slow.mean((3, 4)), fast.mean((3, 4))
        return torch.cat([own, F.adaptive_avg_pool1d(other, own.shape[2])], 1)
