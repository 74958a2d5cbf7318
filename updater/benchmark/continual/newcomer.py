"""The newcomer's way: a release meets sources that it has never seen, and half of their reals are named.

Release 0 learns from the own stream, as the demonstration's does. Photographs of other sources come, of which
it calls most unknown. A person names half of them real, and a candidate is trained. What is asked of it: that
it calls the other half real, and that forgeries from the same sources, which nobody has named, do not pass
with them. Both releases are made and asked by what serves them: the builder, the exported graph, the gate.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from detector.release.artifact import WEIGHTS, Artifact
from detector.release.manifest import GateParameters
from detector.serving.session import open_session
from memory.records import REAL, split_of
from updater.benchmark.continual.streams import part_with_features
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.folders import load_sources
from updater.benchmark.data.tasks import PARTS, hold_back
from updater.benchmark.report.harness import Benchmark, Seed
from updater.benchmark.report.outcome import Outcome, Value, Values
from updater.benchmark.report.results import Resamples, aurocs, shares
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.tasks import load_library
from updater.candidate.builder import calibrate_gate, export_graph, train_network
from updater.candidate.calibrate import reals
from updater.candidate.draft import Draft, identity_of, make_manifest
from updater.candidate.evaluate import Calls, GatedModel
from updater.candidate.plan import Parent, load_network, make_plan
from updater.data.layouts.entries import LayoutError
from updater.data.training_data import LabelledCrops, Splits
from updater.experts.look import Expert, digests_of, picture_plan_of
from updater.measures import auroc
from updater.progress import Progress
from updater.settings import UpdaterSettings

_OF_TRAINING = {"backbone", "epochs", "rate", "batch"}
"""settings that a release of this benchmark follows from, beside the kinds that it leaves out"""


@dataclass(frozen=True)
class Media:
    """The media of the newcomer's way; every item has its forensic features.

    library: the own stream's labelled media, which release 0 learns from. fresh: more of the same classes, of
    other photographs and scenes, that nothing is trained on. newcomers: reals and forgeries of other sources,
    as SOURCE/real and SOURCE/fake.
    """

    library: LabelledCrops
    fresh: LabelledCrops
    newcomers: LabelledCrops


def newcomer_benchmark(
    data: Path | None,
    cache: Path,
    settings: UpdaterSettings,
    progress: Progress,
    reals: int,
    forgeries: int,
    experts: tuple[Expert, ...] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Benchmark[Media]:
    """Return the newcomer's way as it is run, with a library of so many reals and so many of each family.

    The own media that nothing is trained on are a quarter of that. experts: what both releases carry. tell:
    is told what the media take. Raises LayoutError, also without data, and what `load_sources` raises.
    """
    if data is None:
        raise LayoutError("newcomer needs the folder of its data, and there is no --data")
    picture_plan = picture_plan_of(experts)
    with CropReader(cache=cache, progress=progress, picture=picture_plan, tell=tell) as reader:
        reader.beside = sum(count + count // 4 for count in (reals, *[forgeries] * len(FAMILIES)))
        newcomers = LabelledCrops.join(load_sources(data, reader))
    notes = reader.tally.notes()
    lines = (f"{family} {item}\n" for family, item in zip(newcomers.families, newcomers.ids, strict=True))

    def prepare(progress: Progress) -> Media:
        with CropReader(cache=cache, progress=progress, picture=picture_plan) as reader:
            library = load_library(reader, "train", reals, forgeries)
            fresh = load_library(reader, "after", reals // 4, forgeries // 4)
        parts = {"library": library, "fresh": fresh, "newcomers": newcomers}
        cpu = torch.device("cpu")
        return Media(
            **{k: part_with_features(v, cpu, partial(progress, f"features of {k}")) for k, v in parts.items()}
        )

    return Benchmark(
        "newcomer",
        data.name,
        hashlib.sha256("".join(lines).encode()).hexdigest(),
        {
            "reals": reals,
            "each": forgeries,
            "without_kinds": [*sorted(settings.without_kinds)],  # a set has another order each time
            **settings.model_dump(mode="json", include=_OF_TRAINING),
            **digests_of(experts),
        },
        (str(reals), str(forgeries)),
        prepare,
        lambda media, seed: measure(media, settings, seed, experts).model_copy(update={"notes": notes}),
        keeps_parts=True,
    )


def measure(media: Media, settings: UpdaterSettings, seed: Seed, experts: tuple[Expert, ...] = ()) -> Outcome:
    """Go the newcomer's way once. The seed decides the splits and both trainings.

    Groups stay whole: in the halves of the photographs, and on the sides of both releases' data.
    """
    settings = settings.model_copy(update={"seed": seed.number})
    real = reals(media.newcomers.families)
    photographs, forgeries = (media.newcomers.take(np.flatnonzero(side)) for side in (real, ~real))
    to_name, others = hold_back(photographs, 0.5, seed.number)
    items = LabelledCrops.join([media.fresh, others, forgeries])
    library = replace(media.library, sources=("own stream",) * len(media.library))
    release = _release(settings, None, _deal_splits([library], seed), seed, "before", experts)
    both = _deal_splits([library, replace(to_name, families=(REAL,) * len(to_name))], seed)
    held = release.manifest
    parent = Parent(release, load_network(release.folder / WEIGHTS, held.architecture, held.classes))
    candidate = _release(settings, parent, both, seed, "after", experts)
    gates, progress = (held.gate, candidate.manifest.gate), partial(seed.progress, "judge")
    before, after = (
        GatedModel(open_session(of, threads=1), gate, of.manifest.classes).calls(items, progress)
        for of, gate in zip((release, candidate), gates, strict=True)
    )
    every = LabelledCrops.join([media.fresh, media.newcomers])
    return outcome(gates, items, before, after, draws_of(every))


def draws_of(items: LabelledCrops) -> Resamples:
    """Return draws of all that any seed asks of, by groups within their source."""
    strata = [f"{source}/{family}" for source, family in zip(items.sources, items.families, strict=True)]
    return Resamples(_groups(items), strata)


def _groups(items: LabelledCrops) -> list[str]:
    return [f"{source}/{group}" for source, group in zip(items.sources, items.groups, strict=True)]


def outcome(
    gates: tuple[GateParameters, GateParameters],
    items: LabelledCrops,
    before: Calls,
    after: Calls,
    draws: Resamples,
) -> Outcome:
    """Return both releases' figures of the same items: FIGURE_before and FIGURE_after.

    items: those of other sources as SOURCE/real and SOURCE/fake, the own stream's without a source. By source
    those figures stand that there are items for.
    """

    def of(source: str | None) -> Values:
        pairs = (("before", before), ("after", after))
        both = {when: figures(items, calls, draws, source) for when, calls in pairs}
        return {f"{name}_{when}": values[name] for name in both["before"] for when, values in both.items()}

    sources = sorted({*items.sources} - {""})
    return Outcome(
        figures=of(None),
        families={
            source: {name: v for name, v in of(source).items() if v.value is not None} for source in sources
        },
        about={
            "unknown_thresholds": [gate.unknown_threshold for gate in gates],
            "own_thresholds": [sorted(gate.sources) for gate in gates],
        },
    )


def figures(media: LabelledCrops, calls: Calls, draws: Resamples, source: str | None = None) -> Values:
    """Return shares of a release's labels, and the AUC of the forgeries against the other photographs.

    source: the one that they are of; None: all. Each has its draws.
    """
    sources, families = np.array(media.sources), np.array(media.families)
    new, real = sources != "", reals(families)
    within = sources == source if source else np.ones(len(real), bool)
    parts: dict[str, tuple[NDArray[np.bool_], tuple[str, ...]]] = {
        "others": (new & real & within, ("unknown", "fake", "not_real")),
        "forgeries": (new & ~real & within, ("not_real",)),
        "own_reals": (~new & real & within, ("unknown", "fake")),
        "known_fakes": (~new & ~real & within, ("not_real", "unknown", "named")),
    }
    holds = {
        "unknown": calls.labels == "unknown",
        "fake": calls.labels == "fake",
        "not_real": calls.labels != REAL,
        "named": calls.names == families,
    }
    counts = draws.of(_groups(media))
    scores = {"forgeries_auc": calls.unknown, "forgeries_energy_auc": calls.energy}
    measured: Values = {}
    for part, (chosen, labels) in parts.items():
        n = int(chosen.sum())
        for name in labels:
            share = float(holds[name][chosen].mean()) if n else None
            drawn = tuple(shares(holds[name][chosen], counts[:, chosen]).tolist()) if n else ()
            measured[f"{part}_{name}"] = Value(value=share, n=n, drawn=drawn)
        if part == "forgeries":
            of, _ = parts["others"]
            n += int(of.sum())
            for name, values in scores.items():
                drawn = tuple(aurocs(values[chosen], values[of], counts[:, chosen], counts[:, of]).tolist())
                measured[name] = Value(value=auroc(values[chosen], values[of]), n=n, drawn=drawn)
    return measured


def _deal_splits(parts: Sequence[LabelledCrops], seed: Seed) -> Splits:
    """Share items out by their groups as the memory does, anew for each seed."""
    items = LabelledCrops.join(parts)
    sides = np.array([split_of(f"{seed.number}/{group}") for group in items.groups])
    train, calibration, test = (items.take(np.flatnonzero(sides == side)) for side in PARTS)
    return Splits(train, calibration, test)


def _release(
    settings: UpdaterSettings,
    parent: Parent | None,
    splits: Splits,
    seed: Seed,
    name: str,
    experts: tuple[Expert, ...],
) -> Artifact:
    """Make a release as an update does, up to its manifest."""
    plan = make_plan(settings, parent, splits)
    plan = replace(plan, experts=experts, picture_plan=picture_plan_of(experts))
    digest = identity_of(plan, 0)
    draft = Draft(seed.parts / name, digest, seed.progress)
    trained = train_network(draft, plan)
    calibrated = calibrate_gate(draft, trained)
    exported = export_graph(draft, trained, calibrated)
    return Artifact(draft.artifact, make_manifest(plan, calibrated, exported), digest)
