"""Ridge regression over frozen features, and RanPAC: the same over random features of them.

With rows h of items and one-hot targets y, sums G of h h^T and C of h y^T grow task by task, and the head is
W = (G + lambda I)^-1 C: that of all items at once, so that nothing is rehearsed or forgotten.

ridge: h is what the head of a frozen network reads, and 1 (Zhuang et al. 2022, "ACIL: analytic
class-incremental learning with absolute memorization and privacy protection"; without its expansion).
RanPAC: h is relu(x P), and 1, with normal P, [D, M] (McDonnell et al. 2023, "RanPAC: random projections and
pre-trained models for continual learning"; M is 10,000 there). lambda is its published code's: that power of
ten which, fitted on four fifths of the newest items, has the least squared error on the others.

Heeds none of the options: one logit a class, and no exemplars. Keeps G and C.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.training.crop_rows import item_features
from updater.training.discriminant import center
from updater.training.step import Step, TrainedModel

PROJECTED = 2000
"""M"""
RIDGES = tuple(10.0**power for power in range(-8, 9))


class RandomFeatures(Network):
    """A network of frozen features whose head reads relu(x P), float32 [n, M]."""

    projection: Tensor

    def __init__(self, architecture: Architecture, classes: int, projection: Tensor) -> None:
        """projection: P, float32 [D, M]"""
        super().__init__(architecture, classes)
        self.register_buffer("projection", projection)
        self.embedding_size = projection.shape[1]
        self.head = nn.Linear(self.embedding_size, classes)
        self.pseudo_head = nn.Linear(self.embedding_size, 1)

    def embed(self, seen: Tensor, features: Tensor) -> Tensor:
        """Return the head's input from raw features [n, F]."""
        return torch.relu(super().embed(seen, features) @ self.projection)


def learn_ridge(step: Step) -> TrainedModel:
    """Add a step's items to the sums, and solve the head."""
    with torch.random.fork_rng(devices=[]):
        return _learn(step, Network(step.architecture, len(step.classes)))


def learn_ranpac(step: Step) -> TrainedModel:
    """Add a step's items to the sums of random features, and solve the head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(step.seed)
        if step.previous is None:
            width = Network(step.architecture, 1).embedding_size
            projection = torch.randn(width, PROJECTED)
        else:
            projection = step.previous.network.get_buffer("projection").cpu()
        return _learn(step, RandomFeatures(step.architecture, len(step.classes), projection))


def best_ridge(rows: Tensor, targets: Tensor) -> float:
    """Return lambda for rows [n, M] with one-hot targets [n, K], float64."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    fitted, held = order.tensor_split([round(0.8 * len(rows))])
    known, wanted = rows[fitted], targets[fitted]
    gram, cross = known.T @ known, known.T @ wanted
    errors = [F.mse_loss(rows[held] @ solve(gram, cross, ridge), targets[held]).item() for ridge in RIDGES]
    return min(zip(errors, RIDGES, strict=True))[1]


def solve(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """Return W, float64 [M, K], from G [M, M] and C [M, K]."""
    return torch.linalg.solve(gram + ridge * torch.eye(len(gram)), cross)  # type: ignore[no-any-return]


def _learn(step: Step, network: Network) -> TrainedModel:
    features = item_features(network, step.train, step.device, partial(step.progress, "features"))
    if step.previous is None:
        center(network, features, step.train.sources)
    else:
        network.feature_mean.copy_(step.previous.network.feature_mean)
        network.feature_scale.copy_(step.previous.network.feature_scale)
    rows = network.embed(torch.zeros(len(features), 0), torch.from_numpy(features)).detach().double()
    rows = F.pad(rows, (0, 1), value=1.0)
    of = torch.tensor([step.classes.index(name) for name in step.train.families])
    targets = F.one_hot(of, len(step.classes)).double()
    gram, cross = rows.T @ rows, rows.T @ targets
    if step.previous is not None:
        before = {name: value.cpu() for name, value in step.previous.kept.items()}
        gram += before["gram"]
        cross[:, : before["cross"].shape[1]] += before["cross"]
    weight = solve(gram, cross, best_ridge(rows, targets))
    with torch.no_grad():
        network.head.get_parameter("weight").copy_(weight[:-1].T)
        network.head.get_parameter("bias").copy_(weight[-1])
        for parameter in network.pseudo_head.parameters():
            parameter.zero_()
    return TrainedModel(network.to(step.device).eval(), step.classes, {"gram": gram, "cross": cross})
