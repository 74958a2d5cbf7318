"""RegMixup: mixtures of items beside the items themselves (Pinto et al. 2022).

"RegMixup: mixup as a regularizer can surprisingly improve accuracy and out-of-distribution robustness".
L = CE(x, y) + eta * [s CE(m, y) + (1 - s) CE(m, y')] with m = s x + (1 - s) x', s ~ Beta(alpha, alpha),
alpha = 10, eta = 1; one s a batch, as the published code draws it. What is mixed are the crops. Where crops
are not at hand (a stage on the backbone's features), or blending is left out of the training because a
forgery of this kind is measured as unseen, the pooled features are mixed instead (Verma et al. 2019,
"Manifold mixup").
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALPHA = 10.0
WEIGHT = 1.0
KIND = "blending"


@dataclass(frozen=True)
class Mixing:
    """Who is mixed with whom, in a batch of M items."""

    partner: npt.NDArray[np.int64]
    """[M]: the place in the batch of each item's partner"""
    share: float
    """the item's own, 0..1"""


def draw(rng: np.random.Generator, items: int, alpha: float = ALPHA) -> Mixing:
    """Draw the partners, a permutation, and their share."""
    return Mixing(rng.permutation(items), float(rng.beta(alpha, alpha)))


def mixed_crops(
    crops: npt.NDArray[np.uint8], owners: npt.NDArray[np.int64], mixing: Mixing
) -> npt.NDArray[np.float32]:
    """Mix uint8 [N, S, S, 3] to float32; owners: int64 [N], ascending, the place of each crop's item.

    The k-th crop of an item meets the k-th of its partner, counted round where the partner has fewer.
    """
    counts = np.bincount(owners)
    first = np.cumsum(counts) - counts
    partner = mixing.partner[owners]
    met = first[partner] + (np.arange(len(owners)) - first[owners]) % counts[partner]
    own, other = crops.astype(np.float32), crops[met].astype(np.float32)
    mixed: npt.NDArray[np.float32] = np.float32(mixing.share) * own + np.float32(1 - mixing.share) * other
    return mixed
