"""FOSTER: a new network fits the old one's residual; then both become one again.

Wang et al. 2022, "FOSTER: feature boosting and compression for class-incremental learning".

Feature boosting (`Boosted`): L = L_LA + L_FE + L_KD.
  L_LA, logits alignment: the classification loss on the joint logits divided by w(beta_1), where w_c is
    proportional to 1 / E(n_c), E(n) = (1 - beta^n) / (1 - beta) the effective number of the n_c items of
    class c, and has mean 1: rare old classes must reach higher logits.
  L_FE, feature enhancement: the cross-entropy of a head that reads the new embedding alone.
  L_KD: KL(softmax(old logits / T) || softmax(joint logits of old classes / T)), times
    options.distillation.
The old head is fixed, as boosting has it; the published code trains a copy of it, and in OpenCIL's
configuration its block from the old embedding to new classes too.

Feature compression: one network, begun as the old one, learns from the boosted one by balanced
distillation, KL(w softmax(teacher / T) / sum || softmax(student / T)) with w(beta_2), and nothing else: a
release is one plain network. Both have the two stages of `two_stages`.

As in the published code, the joint logits themselves are the teacher's, undivided by w(beta_1). They lean to
the old classes already, and w adds to that, so that a short training may take a new family for an old one.

Constants: beta_1 = 0.96, beta_2 = 0.97, T = 2. The authors' own configurations have beta_1 from 0.94 to 0.98,
another for each stream, and the same beta_2 and T. The first step is the classification loss alone.

Heeds every option; the exposure shapes the boosted network, and the compression reads the step's fixed
pseudo-forgeries, for which its teacher is computed once. Keeps nothing.
"""

import copy
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model.backbone import NoBackbone
from detector.model.network import Network
from detector.model.scores import NetworkOutput
from updater.training import loop, two_stages
from updater.training.crop_rows import Rows, rows_at
from updater.training.loop import Batch, Loss, Training, TrainingSet
from updater.training.losses import TEMPERATURE, classification, distilled_items, soft_cross_entropy
from updater.training.step import Step, TrainedModel

BOOSTING_BETA = 0.96
COMPRESSION_BETA = 0.97


class DualBackbone(nn.Module):
    """Two backbones, the first frozen: images → their rows beside one another, float32 [N, 2 B]."""

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old, self.new = old, new

    def train(self, mode: bool = True) -> "DualBackbone":
        """Set the mode of the new one; the old one stays in evaluation mode."""
        super().train(mode)
        self.old.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return float32 [N, 2 B], no gradient in the first half."""
        with torch.no_grad():
            before = self.old(images)
        return torch.cat([before, self.new(images)], 1)


class Joint(nn.Module):
    """float32 [M, 2 D] → [M, K]: the old head on the first half, plus the new one on the second.

    Wang et al. 2022, feature boosting: one linear layer on both embeddings, whose block from the old
    embedding to new classes is zero, so that F_t = F_(t-1) + F: the new part fits what the old one leaves.
    """

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old = old
        self.new = new

    def forward(self, embedding: Tensor) -> Tensor:
        """Return float32 [M, K]; the columns of old classes come first."""
        before, own = embedding.chunk(2, 1)
        kept, fitted = self.old(before), self.new(own)
        logits: Tensor = fitted + F.pad(kept, (0, fitted.shape[1] - kept.shape[1]))
        return logits


class Boosted(Network):
    """An old network, frozen, and a new one that begins as the old one does, with a head of its own.

    Rows are [N, 2 B] and embeddings [M, 2 D], the old half first. `auxiliary` reads the new half alone.
    """

    head: Joint  # type: ignore[assignment]
    pseudo_head: Joint  # type: ignore[assignment]

    def __init__(self, old: Network, classes: int) -> None:
        super().__init__(old.architecture, classes)
        begun = {k: v for k, v in old.state_dict().items() if not k.startswith(("head.", "pseudo_head."))}
        self.load_state_dict(begun, strict=False)
        frozen = copy.deepcopy(old).requires_grad_(False).eval()
        if not isinstance(self.backbone, NoBackbone):
            self.backbone = DualBackbone(frozen.backbone, self.backbone)
        self.head = Joint(frozen.head, self.head)
        self.pseudo_head = Joint(frozen.pseudo_head, self.pseudo_head)
        # A module that stands in two places would be in a checkpoint twice.
        for part in ("backbone", "head", "pseudo_head"):
            frozen.add_module(part, nn.Identity())
        self.between = frozen
        self.auxiliary = nn.Linear(self.embedding_size, classes)
        self.embedding_size *= 2

    def train(self, mode: bool = True) -> "Boosted":
        """Set the mode of the new half; the old one stays in evaluation mode."""
        super().train(mode)
        for part in (self.between, self.head.old, self.pseudo_head.old):
            part.eval()
        return self

    def classify(self, seen: Tensor, features: Tensor) -> NetworkOutput:
        """Return the output from rows [M, 2 B] and raw forensic features [M, F]."""
        before, own = seen.chunk(2, 1)
        with torch.no_grad():
            old = self.between.embed(before, features)
        new = self.embed(own, features)
        dropped = torch.cat([old, self.drop(new)], 1)
        return NetworkOutput(
            self.head(dropped), self.pseudo_head(dropped)[:, 0], torch.cat([old, new], 1), features
        )


def learn(step: Step) -> TrainedModel:
    """Train a network on a step, from scratch, or by boosting the previous one and compressing both."""
    if step.previous is None:
        trained = two_stages.train(step, "foster", lambda network, data: classification(step, data))
        return TrainedModel(trained.network, step.classes)
    beside = step.checkpoint.with_suffix(".boosting") if step.checkpoint else None
    boosting = loop.checkpoint(replace(step, checkpoint=beside), "foster boosting", two_stages.STAGES)
    compression = loop.checkpoint(step, "foster", two_stages.STAGES)
    with torch.random.fork_rng(devices=[step.device] if step.device.type == "cuda" else []):
        torch.manual_seed(step.seed)
        network = loop.start(step)
        boosted = Boosted(step.previous.network, network.head.weight.shape[0]).to(step.device)
        data = loop.training_set(step, network)
        targets, classes = torch.from_numpy(data.targets), len(data.fake)
        weight = class_weights(targets, classes, BOOSTING_BETA).to(step.device)
        named = replace(step, progress=lambda stage, *at: step.progress(f"boosting, {stage}", *at))
        rows = two_stages.run_both(
            Training(named, data, boosting), boosted, boosting_loss(step, data, boosted, weight)
        )
        once = replace(data, exposure=None)
        weight = class_weights(targets, classes, COMPRESSION_BETA).to(step.device)
        loss = compression_loss(step, once, boosted.eval(), rows, weight)
        two_stages.run_both(Training(step, once, compression), network, loss)
    boosting.remove()
    compression.remove()
    return TrainedModel(network.eval(), step.classes)


def class_weights(targets: Tensor, classes: int, beta: float) -> Tensor:
    """Return w of each column, float32 [classes + 1], the pseudo-forgeries last, mean 1.

    targets: int64 [n] in 0..classes. A class without an item counts as one with one. Where there are no
    pseudo-forgeries their weight is 1 and has no part in the mean: the published code has no such column.
    """
    counts = torch.bincount(targets, minlength=classes + 1).double()
    weight = (1 - beta) / (1 - beta ** counts.clamp_min(1))
    weight[classes] = weight[classes] if counts[classes] else weight[:classes].mean()
    return (weight / weight.mean()).float()


def boosting_loss(step: Step, data: TrainingSet, boosted: Boosted, weight: Tensor) -> Loss:
    """Return L_LA + L_FE + L_KD; weight: float32 [K + 1]."""
    aligned, rows = classification(step, data), distilled_items(step, data)

    def total(batch: Batch) -> Tensor:
        known = batch.target < len(data.fake)
        outliers = batch.outliers and aligned_output(batch.outliers, weight)
        value = aligned(replace(batch, output=aligned_output(batch.output, weight), outliers=outliers))
        old, new = batch.output.embedding.chunk(2, 1)
        if known.any():
            value = value + F.cross_entropy(boosted.auxiliary(new)[known], batch.target[known])
        if step.options.distillation:
            held, before = rows(batch), boosted.head.old(old)
            logits = batch.output.logits[held, : before.shape[1]]
            kept = soft_cross_entropy(logits, before[held], divergence=True)
            value = value + step.options.distillation * kept
        return value

    return total


def aligned_output(output: NetworkOutput, weight: Tensor) -> NetworkOutput:
    """Return the output with each logit divided by its weight; weight: float32 [K + 1]."""
    return output._replace(logits=output.logits / weight[:-1], pseudo_logit=output.pseudo_logit / weight[-1])


def compression_loss(step: Step, data: TrainingSet, boosted: Boosted, rows: Rows, weight: Tensor) -> Loss:
    """Return the balanced distillation from the boosted network, of whose backbones only rows are read.

    rows: float32 [T, 2 B], of every crop; weight: float32 [K + 1].
    """

    def all_logits(output: NetworkOutput) -> Tensor:
        if step.options.exposure == "none":
            return output.logits
        return torch.cat([output.logits, output.pseudo_logit[:, None]], 1)

    def total(batch: Batch) -> Tensor:
        with torch.no_grad():
            read = (rows_at(x, batch.crops, step.device) for x in (rows, data.features))
            teacher = all_logits(boosted.classify(*read))
        student = all_logits(batch.output)
        return balanced_distillation(student, teacher, weight[: student.shape[1]])

    return total


def balanced_distillation(
    logits: Tensor, teacher: Tensor, weight: Tensor, temperature: float = TEMPERATURE
) -> Tensor:
    """Return the mean KL(w softmax(teacher / T) / sum || softmax(logits / T)), a scalar.

    logits, teacher: float32 [M, K]; weight: float32 [K], above 0.
    """
    wanted = F.softmax(teacher / temperature + weight.log(), 1)
    return F.kl_div(F.log_softmax(logits / temperature, 1), wanted, reduction="batchmean")
