"""Small autoencoders trained on real crops: simulated generators that learnt their source."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

STEPS = 200
_BATCH, _SIDE_PX = 16, 64
_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, lambda: nn.LeakyReLU(0.2), nn.SiLU, nn.Tanh)


class Autoencoder(nn.Module):
    """float32 [N, 3, H, W] in 0..255 → the same through a narrow code; two halvings, H and W multiples of 4.

    Its width, kernels, activation and up-samplers are drawn at random.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        width, code = int(rng.choice([8, 12, 16])), int(rng.choice([8, 12, 16]))
        activation = _ACTIVATIONS[int(rng.integers(len(_ACTIVATIONS)))]
        size = int(rng.choice([3, 5]))
        half = size // 2
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, size, 2, half), activation(), nn.Conv2d(width, code, 3, 2, 1)
        )
        self.decode = nn.Sequential(
            *_doubling(rng, code, width),
            activation(),
            *_doubling(rng, width, width),
            activation(),
            nn.Conv2d(width, 3, size, 1, half),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """Return what comes out, not clipped."""
        decoded: Tensor = self.decode(self.encode((pictures - 128) / 64))
        return 128 + 64 * decoded


def _doubling(rng: np.random.Generator, inputs: int, outputs: int) -> list[nn.Module]:
    kind = rng.choice(["nearest", "bilinear", "transposed", "shuffled"])
    if kind == "transposed":
        size = int(rng.choice([2, 4]))
        return [nn.ConvTranspose2d(inputs, outputs, size, 2, (size - 2) // 2)]
    if kind == "shuffled":
        return [nn.Conv2d(inputs, 4 * outputs, 3, 1, 1), nn.PixelShuffle(2)]
    return [nn.Upsample(scale_factor=2, mode=str(kind)), nn.Conv2d(inputs, outputs, 3, 1, 1)]


def train_autoencoder(
    crops: NDArray[np.uint8],
    seed: int,
    device: torch.device,
    *,
    steps: int = STEPS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Autoencoder:
    """Return an autoencoder in evaluation mode that was trained on parts of crops, uint8 [T, S, S, 3].

    Adam on the mean absolute error. The global random state is left as it was.
    """
    rng = np.random.default_rng([seed, 7])
    side = min(_SIDE_PX, crops.shape[1] // 4 * 4)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = Autoencoder(rng).to(device)
        optimiser = torch.optim.Adam(network.parameters(), 4e-3)
        for step in range(steps):
            chosen = rng.integers(len(crops), size=_BATCH)
            row, column = rng.integers(0, crops.shape[1] - side + 1, 2)
            part = crops[chosen, row : row + side, column : column + side]
            pictures = torch.from_numpy(part).to(device).float().permute(0, 3, 1, 2)
            loss = F.l1_loss(network(pictures), pictures)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
            progress(step + 1, steps)
    return network.eval().requires_grad_(False)
