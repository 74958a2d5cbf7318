"""A trained network on items: its output, gate, labels and scores of rejection."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.scores import NetworkOutput, energy
from updater.benchmark.continual.setup import Setup
from updater.benchmark.rejection.evidence import Evidence, Score, evidence_of, known_of
from updater.candidate.calibrate import calibrate, reals
from updater.candidate.evaluate import GatedNetwork, labels_of, unknown_scores
from updater.candidate.gate_inputs import Part, gate_inputs
from updater.candidate.reference_set import equal_shares
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.experts.calibrate import ExpertsSay
from updater.training import schemes
from updater.training.crop_rows import backbone_rows, classify_in_parts, crop_features
from updater.training.step import TrainedModel


@dataclass(frozen=True)
class JudgedItems:
    """n items as a trained network judged them; scores are higher for less familiar items.

    families: each item's class. column: its highest logit, and right whether that is right, the gate aside,
    as `rightly_told` counts it. fake_by_maxima: CDDB's p_F, of which its mAP is. unknown_score: the gate's.
    labels: real, fake or unknown, at the deployed thresholds. All are [n]; features, the raw forensic ones,
    are [n, F], and F is 0 where there are none.
    """

    families: NDArray[np.str_]
    groups: NDArray[np.str_]
    column: NDArray[np.int64]
    right: NDArray[np.bool_]
    fake_probability: NDArray[np.float32]
    fake_by_maxima: NDArray[np.float32]
    energy: NDArray[np.float32]
    unknown_score: NDArray[np.float32]
    labels: NDArray[np.str_]
    features: NDArray[np.float32]
    rejection: dict[str, NDArray[np.float64]]

    def take(self, rows: slice) -> "JudgedItems":
        parts = {name: values[rows] for name, values in vars(self).items() if name != "rejection"}
        return JudgedItems(**parts, rejection={name: v[rows] for name, v in self.rejection.items()})


def joined_items(parts: Sequence[JudgedItems]) -> JudgedItems:
    names = [name for name in vars(parts[0]) if name != "rejection"]
    return JudgedItems(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
        rejection={
            name: np.concatenate([part.rejection[name] for part in parts]) for name in parts[0].rejection
        },
    )


def outputs_of(
    learnt: TrainedModel, items: LabelledCrops, device: torch.device
) -> Iterator[tuple[slice, NetworkOutput]]:
    """Yield some thousands of whole items at a time, at least once, with the network's output."""
    network, done = learnt.network, 0
    features, rows = crop_features(network, items, device), backbone_rows(network, items.crops, device)
    for tensors in classify_in_parts(network, rows, features, items.starts):
        output = NetworkOutput(*(tensor.cpu() for tensor in tensors))
        yield slice(done, done + len(output.logits)), output
        done += len(output.logits)


def _part(learnt: TrainedModel, items: LabelledCrops, setup: Setup) -> Part:
    outputs = (output for _, output in outputs_of(learnt, items, setup.torch_device))
    joined = NetworkOutput(*(torch.cat(of) for of in zip(*outputs, strict=True)))
    return Part(items, joined, np.zeros((len(items), 0)))


def _fake_columns(learnt: TrainedModel, setup: Setup) -> torch.Tensor:
    return schemes.fake_columns(schemes.columns(learnt.classes, setup.options))


MAX_FITTED_ON = 20_000
"""training items that scores of rejection are fitted on, an equal share of each class; of these at most
REFERENCE_ROWS are in the reference set, as in a release"""
ODIN = "odin-published"
"""the one score that reads crops instead of evidence, since it steps along a gradient"""


@dataclass(frozen=True)
class CalibratedModel:
    """A trained network with its gate, calibrated on held-back items of the classes that it knows."""

    learnt: TrainedModel
    setup: Setup
    gated: GatedNetwork
    rejection: dict[str, Score]
    """the setup's scores of evidence, fitted, by name"""

    def judge(self, items: LabelledCrops) -> JudgedItems:
        parts, experts = [], self.gated.experts and self.gated.experts.of(items)
        for some, output in outputs_of(self.learnt, items, self.setup.torch_device):
            parts.append(self._judge_output(output, experts and experts.take(some), items, some))
        judged = joined_items(parts)
        return replace(judged, rejection=judged.rejection | self._odin(items))

    def _judge_output(
        self, output: NetworkOutput, experts: ExpertsSay | None, items: LabelledCrops, some: slice
    ) -> JudgedItems:
        judge, fake = self.gated, _fake_columns(self.learnt, self.setup)
        measured = gate_inputs(output, judge.scores, experts, judge.fake)
        logits, unknown = torch.from_numpy(measured.logits), unknown_scores(measured, judge.gate)
        evidence = evidence_of(self.learnt.network, output)
        return JudgedItems(
            families=np.array(items.families[some], str),
            groups=np.array(items.groups[some], str),
            column=np.asarray(logits.argmax(1).numpy()),
            right=_right(self.learnt, self.setup, logits, items.families[some]),
            fake_probability=measured.fake_probability,
            fake_by_maxima=schemes.fake_by_maxima(logits, fake).numpy(),
            energy=measured.scores["energy"],
            unknown_score=unknown,
            labels=labels_of(unknown, measured.fake_probability, judge.gate, sources=items.sources[some]),
            features=np.asarray(output.features.numpy(), np.float32),
            rejection={name: score(evidence) for name, score in self.rejection.items()},
        )

    def _odin(self, items: LabelledCrops) -> dict[str, NDArray[np.float64]]:
        if ODIN not in self.setup.rejection:
            return {}
        from updater.benchmark.rejection.logits import odin_scores

        return {ODIN: odin_scores(self.learnt.network, items, device=self.setup.torch_device)}


def calibrate_model(
    learnt: TrainedModel,
    setup: Setup,
    train: LabelledCrops,
    calibration: LabelledCrops,
    *,
    new: int | None = None,
    without: frozenset[str] = frozenset(),
    seed: int,
) -> CalibratedModel:
    """Fit the gate, and the setup's scores, as a release does.

    train: what the network was trained on, of which all but the first `new` items are exemplars of earlier
    steps; calibration: items of its classes that it was not. without: kinds of change that heads are not
    trained on. seed: of heads that are trained. Raises CalibrationError, EvidenceError.
    """
    # Importing them takes seconds, which whoever only trains should not wait for.
    from updater.benchmark.rejection.methods import HEADS, POST_HOC

    old = np.arange(len(train)) >= (len(train) if new is None else new)
    if len(train) > MAX_FITTED_ON:
        some = equal_shares(np.array(train.families), np.array(train.ids), MAX_FITTED_ON)
        train, old = train.take(some), old[some]
    network, (known, held) = learnt.network, (_part(learnt, items, setup) for items in (train, calibration))
    judge = calibrate(
        network,
        known,
        held,
        learnt.classes,
        experts=[expert.contract for expert in setup.experts],
        options=setup.options,
        fake=_fake_columns(learnt, setup),
    )
    evidence = known_of(
        network,
        evidence_of(network, known.output),
        _columns(train, learnt, setup),
        evidence_of(network, held.output),
        _columns(calibration, learnt, setup),
        tuple(schemes.columns(learnt.classes, setup.options)),
        _augmix_evidence(learnt, setup, train, without, seed) if "augmix" in setup.rejection else (),
    )
    names = [name for name in setup.rejection if name != ODIN]
    fitted = {n: POST_HOC[n](evidence) if n in POST_HOC else HEADS[n](evidence, old, seed) for n in names}
    return CalibratedModel(learnt, setup, judge, fitted)


def _augmix_evidence(
    learnt: TrainedModel, setup: Setup, items: LabelledCrops, without: frozenset[str], seed: int
) -> tuple[Evidence, ...]:
    """Return the evidence of AugMix's versions of the items."""
    from updater.benchmark.rejection import augmix

    evidence = []
    for number in range(augmix.VERSIONS):
        rng = SeedPurpose.AUGMIX_VERSIONS.generator(seed, number)
        crops = augmix.augment_all(rng, items.crops, without)
        changed = replace(items, crops=crops, features=None, crop_features=None)
        evidence.append(evidence_of(learnt.network, _part(learnt, changed, setup).output))
    return tuple(evidence)


def rightly_told(learnt: TrainedModel, setup: Setup, items: LabelledCrops) -> float:
    """Return the share told rightly by the highest logit, 0..1.

    Right is real or fake (CDDB section 4); among classes none of which is of real media, the very class.
    """
    outputs = outputs_of(learnt, items, setup.torch_device)
    right = sum(_right(learnt, setup, of.logits, items.families[some]).sum() for some, of in outputs)
    return int(right) / len(items)


def _right(
    learnt: TrainedModel, setup: Setup, logits: torch.Tensor, families: Sequence[str]
) -> NDArray[np.bool_]:
    names, column = schemes.columns(learnt.classes, setup.options), logits.argmax(1)
    if not reals(learnt.classes).any():
        return np.asarray(np.array(names)[column.numpy()] == np.array(families))
    return np.asarray(schemes.fake_columns(names)[column].numpy() == ~reals(families))


def herding_features(learnt: TrainedModel, items: LabelledCrops, device: torch.device) -> torch.Tensor:
    """Return the features that exemplars are chosen by, float32 [n, D]: each item's embedding."""
    return torch.cat([output.embedding.float() for _, output in outputs_of(learnt, items, device)])


def _columns(items: LabelledCrops, learnt: TrainedModel, setup: Setup) -> NDArray[np.int64]:
    return np.array(schemes.targets(items.families, learnt.classes, setup.options), np.int64)


def energy_of(learnt: TrainedModel, items: LabelledCrops, device: torch.device) -> NDArray[np.float32]:
    """Return the classifier's energy of each item, float32 [n]."""
    logits = torch.cat([output.logits for _, output in outputs_of(learnt, items, device)])
    return np.asarray(energy(logits).numpy(), np.float32)
