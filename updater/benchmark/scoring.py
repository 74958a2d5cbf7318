"""What a trained network makes of items: its output, its gate, its labels, its scores of rejection."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from detector import scores
from detector.gate import GateParameters, decide
from detector.network import NetworkOutput
from detector.reference import Reference
from updater.benchmark.setup import Setup
from updater.calibrate import (
    ItemScores,
    Targets,
    fit_gate,
    item_scores,
    make_reference,
    reals,
    unknown_scores,
)
from updater.learners import schemes
from updater.learners.pools import backbone_rows, classify_items, forensic_rows
from updater.learners.step import Learnt
from updater.rejection.evidence import Score, evidence_of, known_of
from updater.training_data import LabelledCrops


def output_of(learnt: Learnt, items: LabelledCrops, device: torch.device) -> NetworkOutput:
    """Return what the network says of each whole item, on the CPU."""
    network = learnt.network
    cached = items.crop_features if network.forensics is not None else None
    features = (
        forensic_rows(network, items.crops, device) if cached is None else torch.from_numpy(cached).to(device)
    )
    found = classify_items(network, backbone_rows(network, items.crops, device), features, items.starts)
    return NetworkOutput(*(one.cpu() for one in found))


@dataclass(frozen=True)
class Judge:
    """A trained network with its gate, calibrated on held-back items of the classes that it knows."""

    learnt: Learnt
    setup: Setup
    gate: GateParameters
    reference: Reference | None
    rejection: dict[str, Score]
    """the setup's post-hoc scores, fitted, by name"""

    @property
    def fake(self) -> torch.Tensor:
        """Which logits stand for fakes, bool [K]."""
        return schemes.fake_columns(schemes.columns(self.learnt.classes, self.setup.options))

    def judged(self, items: LabelledCrops) -> "Judged":
        """Judge whole items."""
        output = output_of(self.learnt, items, self.setup.torch_device)
        measured = _measured(output, self.reference, self.fake)
        evidence = evidence_of(self.learnt.network, output)
        return Judged(
            families=np.array(items.families, str),
            groups=np.array(items.groups, str),
            column=np.asarray(output.logits.argmax(1).numpy()),
            fake=np.asarray(self.fake[output.logits.argmax(1)].numpy()),
            fake_probability=measured.fake_probability,
            energy=measured.energy,
            unknown_score=unknown_scores(measured, self.gate),
            labels=_labels(measured, self.gate),
            rejection={name: score(evidence) for name, score in self.rejection.items()},
        )


@dataclass(frozen=True)
class Judged:
    """n items judged; scores are higher for less familiar items."""

    families: NDArray[np.str_]
    """[n], the class that each is of"""
    groups: NDArray[np.str_]
    column: NDArray[np.int64]
    """[n], the highest logit"""
    fake: NDArray[np.bool_]
    """[n], whether that stands for fakes: the classifier's answer, the gate aside"""
    fake_probability: NDArray[np.float32]
    energy: NDArray[np.float32]
    unknown_score: NDArray[np.float32]
    """[n], by the gate"""
    labels: NDArray[np.str_]
    """[n], real, fake or unknown, at the deployed thresholds"""
    rejection: dict[str, NDArray[np.float64]]


def calibrated(
    learnt: Learnt, setup: Setup, train: LabelledCrops, calibration: LabelledCrops, names: tuple[str, ...]
) -> Judge:
    """Fit the gate, and the post-hoc scores of these names, as a release does.

    train: what the network was trained on; calibration: items of its classes that it was not. Raises
    CalibrationError, EvidenceError.
    """
    # Importing them takes seconds, which whoever only trains should not wait for.
    from updater.rejection.methods import POST_HOC

    device = setup.torch_device
    fake = schemes.fake_columns(schemes.columns(learnt.classes, setup.options))
    known, held = output_of(learnt, train, device), output_of(learnt, calibration, device)
    reference = None
    if learnt.network.forensics is not None:
        reference = make_reference(known, train.families, train.ids)
    measured = _measured(held, reference, fake)
    gate = fit_gate(measured, np.array(calibration.families), np.array(calibration.groups), Targets())
    evidence = known_of(
        learnt.network,
        evidence_of(learnt.network, known),
        _columns(train, learnt, setup),
        evidence_of(learnt.network, held),
        _columns(calibration, learnt, setup),
    )
    return Judge(learnt, setup, gate, reference, {name: POST_HOC[name](evidence) for name in names})


def rightly_told(learnt: Learnt, setup: Setup, items: LabelledCrops) -> float:
    """Return the share told rightly real or fake by the highest logit (CDDB section 4), 0..1."""
    names = schemes.columns(learnt.classes, setup.options)
    column = output_of(learnt, items, setup.torch_device).logits.argmax(1)
    told = schemes.fake_columns(names)[column].numpy()
    return float((told == ~reals(items.families)).mean())


def herding_features(learnt: Learnt, items: LabelledCrops, device: torch.device) -> NDArray[np.float32]:
    """Return what exemplars are chosen by, float32 [n, D]: the network's embedding of each item."""
    return np.asarray(output_of(learnt, items, device).embedding.numpy(), np.float32)


def _columns(items: LabelledCrops, learnt: Learnt, setup: Setup) -> NDArray[np.int64]:
    return np.array(schemes.targets(items.families, learnt.classes, setup.options), np.int64)


def _measured(output: NetworkOutput, reference: Reference | None, fake: torch.Tensor) -> ItemScores:
    """Return the gate's scores, with the mass on all fake logits: a release has one real class alone."""
    probability = schemes.fake_probability(output.logits, fake).numpy()
    return replace(item_scores(output, reference), fake_probability=probability)


def _labels(measured: ItemScores, gate: GateParameters) -> NDArray[np.str_]:
    unknown = unknown_scores(measured, gate)
    pairs = zip(unknown, measured.fake_probability, strict=True)
    return np.array([decide(float(u), float(f), gate) for u, f in pairs], str)


def energy_of(learnt: Learnt, items: LabelledCrops, device: torch.device) -> NDArray[np.float32]:
    """Return the classifier's energy of each item, float32 [n]."""
    return np.asarray(scores.energy(output_of(learnt, items, device).logits).numpy(), np.float32)
