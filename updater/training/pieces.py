"""A batch that a GPU does not hold at once, in pieces: each passes forwards alone, and once more going back.

Of a piece only the result is kept (Chen et al. 2016, "Training deep nets with sublinear memory cost"), and
the loss is computed on the results of all pieces, as on the whole batch. So a step is that of the whole
batch, whatever the loss is over: pairs, means over some items, extrema. Batch normalisation in training is
the exception: its statistics are of a piece, and its running ones move each time that a piece passes. What a
backbone draws at random by itself (dropout, drop path) is drawn for each piece.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from updater.training.crop_rows import DeviceMemoryError

_log = structlog.get_logger()


def in_pieces(function: Callable[[Tensor], Tensor], rows: Tensor, pieces: int) -> Tensor:
    """Return function(rows), which has a row for each of them, computed in so many pieces."""
    if pieces == 1:
        return function(rows)
    made = [checkpoint(function, piece, use_reentrant=False) for piece in rows.tensor_split(pieces)]
    return torch.cat(made)


@dataclass
class Pieces:
    """In how many pieces a batch passes: more as soon as the device's memory asks for them."""

    device: torch.device
    items: int
    """of a batch, for what is told"""
    count: int = 1

    def as_memory_allows(self, rows: int, gradients: Callable[[], None]) -> None:
        """Compute the gradients of a batch, in as many pieces as it takes.

        rows: of the batch, of which a piece has at least two (one alone has no statistics). gradients: reads
        `count`, and does anew what it left undone. Raises DeviceMemoryError where the memory is too small.
        """
        while True:
            try:
                gradients()
                return
            except torch.OutOfMemoryError as error:
                if rows < 4 * self.count:
                    raise DeviceMemoryError(
                        f"{self.device} has too little memory to train on {self.items} items at a time: end"
                        " what else runs on it, or choose a smaller batch, backbone or crop"
                    ) from error
            # Out of the handler, where what was computed so far is let go of.
            torch.cuda.empty_cache()
            self.count *= 2
            _log.warning("device memory full", device=str(self.device), pieces=self.count)
