"""What a trained network makes of items: its output, its gate, its labels, its scores of rejection."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.scores import NetworkOutput, energy
from detector.release.artifact import Reference
from detector.release.manifest import GateParameters
from updater.benchmark.continual.setup import Setup
from updater.benchmark.rejection.evidence import Evidence, Score, evidence_of, known_of
from updater.candidate.calibrate import common_scales, fit_gate, labels_of, reals, unknown_scores
from updater.candidate.gate_inputs import GateInputs, gate_inputs
from updater.candidate.reference_set import REFERENCE_ROWS, CalibrationError, equal_shares, make_reference
from updater.candidate.thresholds import TARGETS
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.experts.calibrate import ExpertsSay, calibrated_experts
from updater.measures import balanced_weights, weighted_quantile
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
        """Return these items."""
        parts = {name: values[rows] for name, values in vars(self).items() if name != "rejection"}
        return JudgedItems(**parts, rejection={name: v[rows] for name, v in self.rejection.items()})


def joined_items(parts: Sequence[JudgedItems]) -> JudgedItems:
    """Return the items of all parts, of which there is at least one."""
    names = [name for name in vars(parts[0]) if name != "rejection"]
    return JudgedItems(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
        rejection={
            name: np.concatenate([part.rejection[name] for part in parts]) for name in parts[0].rejection
        },
    )


def output_of(learnt: TrainedModel, items: LabelledCrops, device: torch.device) -> NetworkOutput:
    """Return what the network says of each whole item, on the CPU."""
    parts = zip(*outputs_of(learnt, items, device), strict=True)
    return NetworkOutput(*(torch.cat(part) for part in parts))


def outputs_of(learnt: TrainedModel, items: LabelledCrops, device: torch.device) -> Iterator[NetworkOutput]:
    """Yield what the network says of some thousands of whole items at a time, at least once, on the CPU."""
    network = learnt.network
    features, rows = crop_features(network, items, device), backbone_rows(network, items.crops, device)
    for found in classify_in_parts(network, rows, features, items.starts):
        yield NetworkOutput(*(one.cpu() for one in found))


MAX_FITTED_ON = 20_000
"""training items that scores of rejection are fitted on, an equal share of each class; of these at most
REFERENCE_ROWS are in the reference set, as in a release"""
ODIN = "odin-published"
"""the one score that reads crops instead of evidence, since it steps along a gradient"""


def scores_offered() -> tuple[str, ...]:
    """Return the names of all scores of rejection, those with a trained head of their own among them."""
    from updater.benchmark.rejection.methods import HEADS, POST_HOC

    return (*POST_HOC, ODIN, *HEADS)


@dataclass(frozen=True)
class CalibratedModel:
    """A trained network with its gate, calibrated on held-back items of the classes that it knows."""

    learnt: TrainedModel
    setup: Setup
    gate: GateParameters
    reference: Reference | None
    rejection: dict[str, Score]
    """the setup's scores of evidence, fitted, by name"""
    experts: ExpertsSay | None
    """what the setup's experts say of the calibration items"""

    @property
    def fake(self) -> torch.Tensor:
        """Which logits stand for fakes, bool [K]."""
        return schemes.fake_columns(schemes.columns(self.learnt.classes, self.setup.options))

    def judge(self, items: LabelledCrops) -> JudgedItems:
        """Judge whole items."""
        parts, done = [], 0
        experts = self.experts and self.experts.of(items)
        for output in outputs_of(self.learnt, items, self.setup.torch_device):
            some = slice(done, done + len(output.logits))
            parts.append(self._judge_output(output, experts and experts.take(some), items, some))
            done += len(output.logits)
        judged = joined_items(parts)
        return replace(judged, rejection=judged.rejection | self._odin(items))

    def _judge_output(
        self, output: NetworkOutput, experts: ExpertsSay | None, items: LabelledCrops, some: slice
    ) -> JudgedItems:
        frozen = self.learnt.network.architecture.frozen
        measured = _gate_inputs(output, self.reference, self.fake, experts, frozen)
        logits = torch.from_numpy(measured.logits)
        evidence = evidence_of(self.learnt.network, output)
        return JudgedItems(
            families=np.array(items.families[some], str),
            groups=np.array(items.groups[some], str),
            column=np.asarray(logits.argmax(1).numpy()),
            right=_right(self.learnt, self.setup, logits, items.families[some]),
            fake_probability=measured.fake_probability,
            fake_by_maxima=schemes.fake_by_maxima(logits, self.fake).numpy(),
            energy=measured.scores["energy"],
            unknown_score=unknown_scores(measured, self.gate),
            labels=_labels(measured, self.gate, items.sources[some]),
            features=np.asarray(output.features.numpy(), np.float32),
            rejection={name: score(evidence) for name, score in self.rejection.items()},
        )

    def _odin(self, items: LabelledCrops) -> dict[str, NDArray[np.float64]]:
        if ODIN not in self.setup.rejection:
            return {}
        from updater.benchmark.rejection.logits import odin_scores

        return {ODIN: odin_scores(self.learnt.network, items, device=self.setup.torch_device)}


def calibrate(
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

    device = setup.torch_device
    fake = schemes.fake_columns(schemes.columns(learnt.classes, setup.options))
    old = np.arange(len(train)) >= (len(train) if new is None else new)
    if len(train) > MAX_FITTED_ON:
        some = equal_shares(np.array(train.families), np.array(train.ids), MAX_FITTED_ON)
        train, old = train.take(some), old[some]
    known, held = output_of(learnt, train, device), output_of(learnt, calibration, device)
    reference = None
    if learnt.network.forensics is not None:
        rows = np.arange(len(train))
        if len(train) > REFERENCE_ROWS:
            rows = np.array(equal_shares(np.array(train.families), np.array(train.ids), REFERENCE_ROWS))
        named = (np.array(of)[rows].tolist() for of in (train.families, train.ids, train.sources))
        reference = make_reference(NetworkOutput(*(one[rows] for one in known)), *named)
    experts = None
    if setup.experts:
        contracts = [expert.contract for expert in setup.experts]
        experts = calibrated_experts(contracts, calibration, held.logits, learnt.classes, setup.options)
    measured = _gate_inputs(held, reference, fake, experts, learnt.network.architecture.frozen)
    gate = _gate(measured, calibration)
    evidence = known_of(
        learnt.network,
        evidence_of(learnt.network, known),
        _columns(train, learnt, setup),
        evidence_of(learnt.network, held),
        _columns(calibration, learnt, setup),
        tuple(schemes.columns(learnt.classes, setup.options)),
        _augmix_evidence(learnt, setup, train, without, seed) if "augmix" in setup.rejection else (),
    )
    names = [name for name in setup.rejection if name != ODIN]
    return CalibratedModel(
        learnt,
        setup,
        gate,
        reference,
        {n: POST_HOC[n](evidence) if n in POST_HOC else HEADS[n](evidence, old, seed) for n in names},
        experts,
    )


def _augmix_evidence(
    learnt: TrainedModel, setup: Setup, items: LabelledCrops, without: frozenset[str], seed: int
) -> tuple[Evidence, ...]:
    """Return the evidence of AugMix's versions of the items."""
    from updater.benchmark.rejection import augmix

    found = []
    for number in range(augmix.VERSIONS):
        rng = SeedPurpose.AUGMIX_VERSIONS.generator(seed, number)
        crops = augmix.augment_all(rng, items.crops, without)
        changed = replace(items, crops=crops, features=None, crop_features=None)
        found.append(evidence_of(learnt.network, output_of(learnt, changed, setup.torch_device)))
    return tuple(found)


def _gate(measured: GateInputs, calibration: LabelledCrops) -> GateParameters:
    """Fit the gate as a release has it; among classes without reals, by the share of each class alone."""
    if not len(calibration):
        raise CalibrationError("no item is held back for calibration: hold some back")
    families, groups = np.array(calibration.families), np.array(calibration.groups)
    if reals(families).any():
        return fit_gate(measured, families, groups, sources=np.array(calibration.sources))
    weights = balanced_weights(families, groups)
    gate = common_scales(measured, weights)
    threshold = weighted_quantile(unknown_scores(measured, gate), weights, 1 - TARGETS.classes_unknown)
    return gate.model_copy(update={"unknown_threshold": threshold})


def rightly_told(learnt: TrainedModel, setup: Setup, items: LabelledCrops) -> float:
    """Return the share told rightly by the highest logit, 0..1.

    Right is real or fake (CDDB section 4); among classes none of which is of real media, the very class.
    """
    outputs, right, done = outputs_of(learnt, items, setup.torch_device), 0, 0
    for output in outputs:
        some = slice(done, done + len(output.logits))
        right += int(_right(learnt, setup, output.logits, items.families[some]).sum())
        done += len(output.logits)
    return right / done


def _right(
    learnt: TrainedModel, setup: Setup, logits: torch.Tensor, families: Sequence[str]
) -> NDArray[np.bool_]:
    names, column = schemes.columns(learnt.classes, setup.options), logits.argmax(1)
    if not reals(learnt.classes).any():
        return np.asarray(np.array(names)[column.numpy()] == np.array(families))
    return np.asarray(schemes.fake_columns(names)[column].numpy() == ~reals(families))


def herding_features(learnt: TrainedModel, items: LabelledCrops, device: torch.device) -> torch.Tensor:
    """Return what exemplars are chosen by, float32 [n, D]: the network's embedding of each item."""
    return torch.cat([one.embedding.float() for one in outputs_of(learnt, items, device)])


def _columns(items: LabelledCrops, learnt: TrainedModel, setup: Setup) -> NDArray[np.int64]:
    return np.array(schemes.targets(items.families, learnt.classes, setup.options), np.int64)


def _gate_inputs(
    output: NetworkOutput,
    reference: Reference | None,
    fake: torch.Tensor,
    experts: ExpertsSay | None,
    frozen: bool,
) -> GateInputs:
    """Return the gate's scores, with the mass on all fake logits: a release has one real class alone."""
    measured = gate_inputs(output, reference, experts, frozen=frozen)
    probability = schemes.fake_probability(torch.from_numpy(measured.logits), fake).numpy()
    return replace(measured, fake_probability=probability)


def _labels(measured: GateInputs, gate: GateParameters, sources: Sequence[str]) -> NDArray[np.str_]:
    return labels_of(unknown_scores(measured, gate), measured.fake_probability, gate, sources=sources)


def energy_of(learnt: TrainedModel, items: LabelledCrops, device: torch.device) -> NDArray[np.float32]:
    """Return the classifier's energy of each item, float32 [n]."""
    logits = torch.cat([one.logits for one in outputs_of(learnt, items, device)])
    return np.asarray(energy(logits).numpy(), np.float32)
