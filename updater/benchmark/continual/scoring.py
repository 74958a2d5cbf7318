"""A trained network on items: its output, gate, labels and scores of rejection.

And its figures on images drawn again, for the intervals in tables, by their names in `Figures`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.scores import NetworkOutput
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.tasks import Stream
from updater.benchmark.rejection.evidence import Evidence, Score, evidence_of, known_of
from updater.benchmark.report.results import ROUNDS, Drawn, Resamples, aurocs, caught_shares, shares
from updater.candidate.calibrate import calibrate, reals
from updater.candidate.evaluate import GatedNetwork, labels_of, unknown_scores
from updater.candidate.gate_inputs import Part, output_of
from updater.candidate.reference_set import equal_shares
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.progress import no_progress
from updater.training import schemes
from updater.training.step import TrainedModel


@dataclass(frozen=True)
class JudgedItems:
    """n items as a trained network judged them; scores are higher for less familiar items.

    families: each item's class. column: its highest logit, and right whether that is right, the gate aside,
    as `rightly_told` counts it. fake_by_maxima: CDDB's p_F, of which its mAP is. labels: real, fake or
    unknown, at the deployed thresholds. All are [n]; features, the raw forensic ones, are [n, F], and F is 0
    where there are none. rejection: by score, of which the gate's own is "fused".
    """

    families: NDArray[np.str_]
    groups: NDArray[np.str_]
    column: NDArray[np.int64]
    right: NDArray[np.bool_]
    fake_probability: NDArray[np.float32]
    fake_by_maxima: NDArray[np.float32]
    energy: NDArray[np.float32]
    labels: NDArray[np.str_]
    features: NDArray[np.float32]
    rejection: dict[str, NDArray[np.float32]]

    @staticmethod
    def join(parts: Sequence["JudgedItems"]) -> "JudgedItems":
        """Return the items of all parts, at least one, in order."""
        scores = {n: np.concatenate([part.rejection[n] for part in parts]) for n in parts[0].rejection}
        names = vars(parts[0]).keys() - {"rejection"}
        whole = {name: np.concatenate([vars(part)[name] for part in parts]) for name in names}
        return JudgedItems(**whole, rejection=scores)

    def take(self, chosen: NDArray[np.bool_]) -> "JudgedItems":
        """Return these items, bool [n]."""
        parts = {name: values[chosen] for name, values in vars(self).items() if name != "rejection"}
        return JudgedItems(**parts, rejection={name: v[chosen] for name, v in self.rejection.items()})


def fake_by_maxima(logits: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """Return CDDB's p_F = M_F / (M_F + M_R) (appendix A.6), float32 [M], in 0..1; fake: bool [K].

    M_F and M_R are the largest softmax outputs among the fakes and among the reals, so this is the sigmoid of
    the difference of the largest logits. 1 where every logit is a fake's, 0 where none is.
    """
    fake = fake.to(logits.device)
    nothing = logits.new_full((len(logits), 1), -torch.inf)
    of_fakes, of_reals = (torch.cat([logits[:, columns], nothing], 1).amax(1) for columns in (fake, ~fake))
    return torch.sigmoid(of_fakes - of_reals)


def network_output(learnt: TrainedModel, items: LabelledCrops, device: torch.device) -> NetworkOutput:
    return output_of(learnt.network, items, device, "", no_progress)


def _part(learnt: TrainedModel, items: LabelledCrops, setup: Setup) -> Part:
    return Part(items, network_output(learnt, items, setup.torch_device), np.zeros((len(items), 0)))


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
        learnt, gate = self.learnt, self.gated.gate
        part = _part(learnt, items, self.setup)
        measured, evidence = self.gated.measure(part), evidence_of(learnt.network, part.output)
        logits, unknown = torch.from_numpy(measured.logits), unknown_scores(measured, gate)
        scores = {name: score(evidence).astype(np.float32) for name, score in self.rejection.items()}
        if ODIN in self.setup.rejection:
            from updater.benchmark.rejection.logits import odin_scores

            stepped = odin_scores(learnt.network, items, device=self.setup.torch_device)
            scores[ODIN] = stepped.astype(np.float32)
        return JudgedItems(
            families=np.array(items.families, str),
            groups=np.array(items.groups, str),
            column=np.asarray(logits.argmax(1).numpy()),
            right=_right(learnt, self.setup, logits, items.families),
            fake_probability=measured.fake_probability,
            fake_by_maxima=fake_by_maxima(logits, _fake_columns(learnt, self.setup)).numpy(),
            energy=measured.scores["energy"],
            labels=labels_of(unknown, measured.fake_probability, gate, sources=items.sources),
            features=np.asarray(part.output.features.numpy(), np.float32),
            rejection=scores | {"fused": unknown},
        )


def calibrate_model(
    learnt: TrainedModel,
    setup: Setup,
    train: LabelledCrops,
    calibration: LabelledCrops,
    *,
    new: int | None = None,
    validation: LabelledCrops | None = None,
    without: frozenset[str] = frozenset(),
    seed: int,
) -> CalibratedModel:
    """Fit the gate, and the setup's scores, as a release does.

    train: what the network was trained on, of which all but the first `new` items are exemplars of earlier
    steps; calibration: items of its classes that it was not. validation: what VALIDATED scores are fitted
    on; else on train. without: kinds of change that heads are not trained on. seed: of heads that are
    trained. Raises CalibrationError, EvidenceError.
    """
    # Importing them takes seconds, which whoever only trains should not wait for.
    from updater.benchmark.rejection.methods import HEADS, POST_HOC, VALIDATED

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
        calibration=evidence_of(network, held.output),
        calibration_targets=_columns(calibration, learnt, setup),
        names=tuple(schemes.columns(learnt.classes, setup.options)),
        versions=_augmix_evidence(learnt, setup, train, without, seed) if "augmix" in setup.rejection else (),
    )
    names = [name for name in setup.rejection if name not in (ODIN, "fused")]
    on = dict.fromkeys(names, evidence)
    if validation and (listed := [name for name in names if name in VALIDATED]):
        output, columns = _part(learnt, validation, setup).output, _columns(validation, learnt, setup)
        on |= dict.fromkeys(listed, known_of(network, evidence_of(network, output), columns))
    fitted = {n: POST_HOC[n](on[n]) if n in POST_HOC else HEADS[n](on[n], old, seed) for n in names}
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
        evidence.append(evidence_of(learnt.network, network_output(learnt, changed, setup.torch_device)))
    return tuple(evidence)


def rightly_told(learnt: TrainedModel, setup: Setup, items: LabelledCrops) -> float:
    """Return the share told rightly by the highest logit, 0..1.

    Right is real or fake (CDDB section 4); among classes none of which is of real media, the very class.
    """
    logits = network_output(learnt, items, setup.torch_device).logits
    return float(_right(learnt, setup, logits, items.families).mean())


def _right(
    learnt: TrainedModel, setup: Setup, logits: torch.Tensor, families: Sequence[str]
) -> NDArray[np.bool_]:
    names, column = schemes.columns(learnt.classes, setup.options), logits.argmax(1)
    if not reals(learnt.classes).any():
        return np.asarray(np.array(names)[column.numpy()] == np.array(families))
    return np.asarray(schemes.fake_columns(names)[column].numpy() == ~reals(families))


def _columns(items: LabelledCrops, learnt: TrainedModel, setup: Setup) -> NDArray[np.int64]:
    return np.array(schemes.targets(items.families, learnt.classes, setup.options), np.int64)


_FAMILIES_SEED = 1

Draws = dict[str, tuple[float, ...]]
"""each figure on each draw"""


def images_of(stream: Stream) -> Resamples:
    """Return draws of all images of a stream, the same for all that is measured on it."""
    # Each class of each part of a task keeps its own number.
    parts = [
        (part, getattr(task, part)) for task in stream.tasks for part in ("test", "calibration", "train")
    ]
    parts += [(f"outliers {outlier.name}", outlier.items) for outlier in stream.outliers]
    strata = [f"{part} {name}" for part, items in parts for name in items.families]
    return Resamples([group for _, items in parts for group in items.groups], strata)


def accuracy_draws(on_tests: Sequence[JudgedItems], images: Resamples) -> Draws:
    """Return AA, and the mean of the tasks' real/fake AUC where each task has both kinds."""
    pairs = [(test, images.of(test.groups.tolist()), ~reals(test.families)) for test in on_tests]
    values = {"aa": 100 * np.mean([shares(test.right, counts) for test, counts, _ in pairs], 0)}
    if all(0 < fake.sum() < len(fake) for _, _, fake in pairs):
        areas = [
            aurocs(of.fake_probability[fake], of.fake_probability[~fake], counts[:, fake], counts[:, ~fake])
            for of, counts, fake in pairs
        ]
        values["real_fake_auc"] = np.mean(areas, 0)
    return _as_draws(values)


def rejection_draws(
    part: str, known: JudgedItems, unseen: JudgedItems, name: str, images: Resamples | None
) -> Draws:
    """Return a score's AUC and share caught at 5 %: of the unseen forgeries against the known items."""
    if images is None:
        return {}
    fakes = unseen.take(~reals(unseen.families))
    scores = fakes.rejection[name], known.rejection[name]
    of_fakes, of_known = (images.of(of.groups.tolist()) for of in (fakes, known))
    both = *scores, of_fakes, of_known
    return _as_draws({f"{part}.auc": aurocs(*both), f"{part}.caught_at_5": caught_shares(*both)})


def within_draws(fakes: JudgedItems, own: JudgedItems, name: str, images: Resamples) -> Draws:
    """Return the figures of forgeries within their source, of which `own` are reals, and their power."""
    counts, of_own = (images.of(of.groups.tolist()) for of in (fakes, own))
    return rejection_draws("within_source", own, fakes, name, images) | _as_draws(
        {
            "within_source.own_energy_auc": aurocs(fakes.energy, own.energy, counts, of_own),
            "power.share": shares(fakes.labels != "real", counts),
        }
    )


def _as_draws(figures: Mapping[str, Drawn]) -> Draws:
    return {name: tuple(values.tolist()) for name, values in figures.items()}


def mean_draws(rows: Sequence[Mapping[str, Sequence[float]]]) -> Draws:
    """Return the means over rows; of the power on rows drawn anew, too, as it is of any family."""
    means = {name: np.mean([row[name] for row in rows], 0) for name in (rows or [{}])[0]}
    if "power.share" in means:
        drawn = np.random.default_rng(_FAMILIES_SEED).integers(0, len(rows), (len(rows), ROUNDS))
        powers = np.array([row["power.share"] for row in rows])
        means["power.share"] = np.take_along_axis(powers, drawn, 0).mean(0)
    return _as_draws(means)
