"""What maps cost: images per second with them and without, a crop of the map, and bytes of a verdict."""

import random
import statistics
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from deploy.bench.model_cost import in_turn, six_crops
from deploy.bench.rate import await_release, bare, measure_rate
from deploy.bench.stock import go_back, go_live, without_maps
from deploy.demo import plan
from deploy.demo.operator import Story
from deploy.demo.traffic import Traffic
from deploy.local.stack import Stack
from detector.records import Verdict
from detector.release.artifact import Artifact
from detector.release.contract import Contract
from detector.release.crop_graphs import CELL_PX, OF_PICTURE
from detector.release.tensors import CROPS, Request
from detector.second_pass.map_look import MAX_CROPS, PictureMap, forgery_map
from detector.serving.session import ReleaseSession, Session, open_session
from memory.records import REAL
from updater.benchmark.synthetic.in_part import make_locals
from updater.benchmark.synthetic.stream import PHOTOGRAPH_SHARE, MediaSample, make_many

IMAGES, FORGED_SHARE = 256, 0.05


class Growth(BaseModel):
    """Bytes that a map adds to a verdict's JSON: on average and at most here, and at most of any picture."""

    mean: float
    most: int
    limit: int


class MapsCost(BaseModel):
    """Medians over the rounds. bare: images per second of a bare loop, which makes no maps.

    bare_ratio: with_maps over bare. The crop's times are of a processor, on one thread, six crops at a time.
    """

    ratio: float
    ratios: list[float]
    with_maps: float
    without: float
    images: int
    forged: int
    mapped: int
    bare: float
    bare_ratio: float
    bare_ratios: list[float]
    crop_ratio: float
    crop_low: float
    crop_high: float
    map_crop_ms: float
    detector_crop_ms: float
    growth: Growth


def maps_cost(
    story: Story, stack: Stack, traffic: Traffic, artifact: Artifact, session: Session[Contract], rounds: int
) -> MapsCost:
    """Measure the live release, which has a localizer, against itself without one, and a bare loop.

    The release is the live one again at the end. Raises TrafficError, DeployError and LedgerError.
    """
    samples = five_in_a_hundred_forged(story.seed)
    without = without_maps(artifact, stack.run / "without-maps")
    rates: dict[str, list[float]] = {artifact.digest: [], without.digest: []}
    alone: list[float] = []
    verdicts: list[Verdict] = []
    live = artifact.digest
    for number in range(rounds):
        # First one, then the other, and the other way round in the next: the machine's speed drifts.
        for digest in (live, without.digest if live == artifact.digest else artifact.digest):
            if digest != live:
                go_live(without, stack.settings) if digest == without.digest else go_back(stack.settings)
                live = digest
            await_release(story, traffic, samples, digest)
            rate = measure_rate(story, traffic, samples, digest)
            rates[digest].append(rate.per_second)
            verdicts = rate.verdicts if digest == artifact.digest else verdicts
        alone.append(bare(session, samples).per_second)
        with_, without_ = rates[artifact.digest][-1], rates[without.digest][-1]
        story.say(
            f"round {number + 1}: {with_:.1f} images/s with maps, {without_:.1f} without, "
            f"bare {alone[-1]:.1f}"
        )
    contract = artifact.manifest.localizer
    assert contract is not None
    pairs = crop_pairs(ReleaseSession(artifact, threads=1), open_session(artifact, threads=1), samples)
    crop_ratios = [own / other for own, other in pairs]
    low, *_, high = statistics.quantiles(crop_ratios, n=10)
    ratios = [own / other for own, other in zip(*rates.values(), strict=True)]
    bare_ratios = [own / other for own, other in zip(rates[artifact.digest], alone, strict=True)]
    mapped = [verdict for verdict in verdicts if verdict.map is not None]
    return MapsCost(
        ratio=statistics.median(ratios),
        ratios=ratios,
        with_maps=statistics.median(rates[artifact.digest]),
        without=statistics.median(rates[without.digest]),
        bare=statistics.median(alone),
        bare_ratio=statistics.median(bare_ratios),
        bare_ratios=bare_ratios,
        images=len(samples),
        forged=sum(sample.family != REAL for sample in samples),
        mapped=len(mapped),
        crop_ratio=statistics.median(crop_ratios),
        crop_low=low,
        crop_high=high,
        map_crop_ms=1000 * statistics.median(own for own, _ in pairs) / 6,
        detector_crop_ms=1000 * statistics.median(other for _, other in pairs) / 6,
        growth=growth(mapped, contract.threshold, contract.crop_px),
    )


def five_in_a_hundred_forged(seed: int) -> list[MediaSample]:
    """Real pictures, and among them pictures of all families that are forged in a part."""
    forged = round(FORGED_SHARE * IMAGES)
    wanted, share = [(REAL, index) for index in range(IMAGES - forged)], PHOTOGRAPH_SHARE["after"]
    reals = make_many(seed, "after", wanted, processes=plan.CORES)
    local = make_locals(seed, "after", plan.in_part()[:forged], processes=plan.CORES, photographs=share)
    samples = [*reals, *local]
    random.Random(seed).shuffle(samples)  # noqa: S311 - an order, no secret
    return samples


def crop_pairs(
    maps: ReleaseSession, detector: Session[Contract], samples: Sequence[MediaSample]
) -> list[tuple[float, float]]:
    """Time both graphs of a release in turn on one image of six crops: seconds, the map's first.

    Both sessions have one thread. Raises ValueError where no sample has six crops.
    """
    request = six_crops(detector, samples)
    small: Request = {CROPS: request[CROPS], OF_PICTURE: np.zeros(len(request[CROPS]), np.int64)}
    return in_turn(lambda: maps.score(small), lambda: detector.score(request))


def growth(mapped: Sequence[Verdict], threshold: float, crop_px: int) -> Growth:
    """Count what maps add to verdicts; the limit is a map of the most cells, in which all is noise."""
    added = [_bytes(item) - _bytes(item.model_copy(update={"map": None})) for item in mapped]
    side = int(MAX_CROPS**0.5) * crop_px // CELL_PX
    noise = np.random.default_rng(0).random((side, side), np.float32)
    part = (9999, 9999, side * CELL_PX, side * CELL_PX)
    largest = forgery_map(PictureMap(noise, part), threshold, 9999)
    return Growth(
        mean=statistics.fmean(added) if added else 0.0,
        most=max(added, default=0),
        limit=len(largest.model_dump_json()),
    )


def _bytes(verdict: Verdict) -> int:
    return len(verdict.model_dump_json())
