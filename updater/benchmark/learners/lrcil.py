"""LRCIL: exemplars are replayed as a layer's output, not as media.

Pellegrini et al. 2020, "Latent replay for real-time continual learning". The layer is the backbone's pooled
rows. An exemplar's crops pass through the backbone once, in the step that brought it; later steps concatenate
its stored rows with those of a batch of new items, which alone are passed forward and backward through the
backbone. So that stored rows stay valid, the layers below learn slower than those above (here at a tenth of
the rate) and their normalisation is fixed after the first step, statistics included.

A batch replays |old| / |new| times as many crops as it has items, each old class equally often. The
loss is the mean over both. options.distillation holds the replayed logits to the previous network's, CDDB's
LRCIL-KD (table 4); 0 is the paper. Heeds every option.

`kept`: "rows.ID", float32 [crops, B], and "features.ID", float32 [crops, F], of every item of the step. An
item is replayed iff it has them; one of an old class without (new, or after a release) is trained on as any.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from detector.model.network import Network
from updater.benchmark.learners.nscil import fix_normalisation, release_normalisation
from updater.training import schemes, two_stages
from updater.training.loop import Batch, Loss, TrainingSet, item_weights
from updater.training.losses import classification, distillation
from updater.training.step import Step, TrainedModel

BELOW = 0.1
"""the backbone's share of the learning rate after the first step"""


@dataclass(frozen=True)
class Latents:
    """Stored rows of n exemplars, R crops in all.

    rows: float32 [R, B]. features: float32 [R, F]. target: int64 [R], the logit of each crop's item. weight:
    float64 [R], the chance of each crop: equal for each class, then for each item, then for each crop.
    """

    ids: tuple[str, ...]
    rows: Tensor
    features: Tensor
    target: Tensor
    weight: Tensor


def learn(step: Step) -> TrainedModel:
    """Train a network on the items of a step that are new, and on the stored rows of the others."""
    stored = latents(step)
    if stored is None:
        trained = two_stages.train(step, "lrcil", lambda network, data: classification(step, data))
        return TrainedModel(trained.network, step.classes, _rows_to_keep(step, trained))
    fresh = [i for i, id_ in enumerate(step.train.ids) if id_ not in stored.ids]
    seen = replace(step, train=step.train.take(fresh))

    def loss_of(network: Network, data: TrainingSet) -> Loss:
        fix_normalisation(network)
        return _loss(seen, network, data, stored)

    trained = two_stages.train(seen, f"lrcil beside {sorted(stored.ids)}", loss_of, below=BELOW)
    release_normalisation(trained.network)
    assert step.previous is not None
    kept = step.previous.kept
    replayed = {f"{part}.{id_}": kept[f"{part}.{id_}"] for id_ in stored.ids for part in ("rows", "features")}
    return TrainedModel(trained.network.eval(), step.classes, replayed | _rows_to_keep(seen, trained))


def latents(step: Step) -> Latents | None:
    """Return the stored rows of a step's items; None where there are none, or nothing else to learn from."""
    kept = step.previous.kept if step.previous else {}
    places = [i for i, id_ in enumerate(step.train.ids) if f"rows.{id_}" in kept]
    if not places or len(places) == len(step.train):
        return None
    ids = tuple(step.train.ids[i] for i in places)
    families = [step.train.families[i] for i in places]
    parts = {part: [kept[f"{part}.{id_}"].to(step.device) for id_ in ids] for part in ("rows", "features")}
    counts = np.array([len(rows) for rows in parts["rows"]])
    _, classes = np.unique(np.array(families), return_inverse=True)
    weight = np.repeat(item_weights(classes, 1.0) / counts, counts)
    target = np.repeat(schemes.targets(families, step.classes, step.options), counts)
    return Latents(
        ids,
        torch.cat(parts["rows"]),
        torch.cat(parts["features"]),
        torch.from_numpy(target).to(step.device),
        torch.from_numpy(weight),
    )


def _loss(step: Step, network: Network, data: TrainingSet, stored: Latents) -> Loss:
    assert step.previous is not None
    share = len(step.old) / max(1, len(step.classes) - len(step.old))
    loss, weight = classification(step, data), step.options.distillation
    teacher = step.previous.network.to(step.device).eval()

    def total(batch: Batch) -> Tensor:
        new = len(batch.items)
        drawn = torch.multinomial(stored.weight, max(1, round(share * new)), replacement=True)
        crops, drawn = drawn.numpy(), drawn.to(step.device)
        output = network.classify(stored.rows[drawn], stored.features[drawn])
        replayed = Batch(output, drawn, stored.target[drawn], crops)
        value = (new * loss(batch) + len(drawn) * loss(replayed)) / (new + len(drawn))
        if weight:
            with torch.no_grad():
                wanted = teacher.classify(stored.rows[drawn], stored.features[drawn]).logits
            value = value + weight * distillation(output.logits[:, : wanted.shape[1]], wanted)
        return value

    return total


def _rows_to_keep(step: Step, trained: two_stages.TwoStageModel) -> dict[str, Tensor]:
    """Return the rows and the features of each item, as they are now."""
    starts = step.train.starts
    return {
        f"{part}.{id_}": torch.tensor(values[starts[i] : starts[i + 1]])
        for i, id_ in enumerate(step.train.ids)
        for part, values in (("rows", trained.rows), ("features", trained.data.features))
    }
