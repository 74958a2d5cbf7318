"""The temporal task: the stretches of videos that are forged, found by one of the methods by name.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.2. A video
is seen from its first annotated frame to its last. With the protocol `cross`, each family is left out of
the training in turn and tested beside all reals.
"""

from collections.abc import Sequence

from updater.benchmark.forgerynet.choices import ChoiceError, Job, in_group
from updater.benchmark.report.outcome import Outcome, Values, values
from updater.benchmark.temporal.method import Method
from updater.benchmark.temporal.methods import METHODS
from updater.benchmark.temporal.videos import Told, Video, by_family, figures, videos
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import Tally

_CACHE = "frame-features"


def check(model: str) -> None:
    """Raise ChoiceError for a method that is none."""
    if model not in METHODS:
        raise ChoiceError(
            f"--model {model or repr(model)} finds no stretches: choose of {', '.join(METHODS)}"
        )


def measure(job: Job) -> Outcome:
    """Train a method on the videos and test it.

    Raises ChoiceError for a method that is none, and LayoutError where a part has no forged stretch that can
    be used.
    """
    check(job.choices.model)
    method = METHODS[job.choices.model]
    tally = Tally()
    parts: dict[str, list[Video]] = {}
    for part, entries in (("train", job.train), ("test", job.test)):
        parts[part] = videos(
            entries, job.cache / _CACHE, tally, lambda *at, part=part: job.progress(f"look at {part}", *at)
        )
        if not any(len(video.clip.segments) for video in parts[part]):
            raise LayoutError(f"{part} has no video with a forged stretch that can be decoded")
    if job.choices.protocol == "cross":
        return _left_out(job, method, parts["train"], parts["test"], tally)
    train_on = parts["train"]
    if chosen := job.choices.train_on:
        train_on = [
            video
            for video in train_on
            if not video.entry.label or in_group(video.entry.family, job.kinds, chosen[0])
        ]
    told = _told(job, method, train_on, parts["test"], "all")
    return Outcome(
        figures=values(figures(told), len(told)),
        families={name: values(of_it, _beside(told, name)) for name, of_it in by_family(told).items()},
        about={
            "trained_on": len(train_on),
            "tested_on": len(told),
            "stretches": sum(len(one.clip.segments) for one in told),
        },
        notes=tally.notes(),
    )


def _left_out(
    job: Job, method: Method, train_on: Sequence[Video], test_on: Sequence[Video], tally: Tally
) -> Outcome:
    table: dict[str, dict[str, Values]] = {}
    for family in job.kinds:
        own = [video for video in test_on if video.entry.family in (family, "real")]
        rest = [video for video in train_on if video.entry.family != family]
        if not any(len(video.clip.segments) for video in own) or len(rest) == len(train_on):
            continue
        told = _told(job, method, rest, own, f"all but {family}")
        table[f"all but {family}"] = {family: values(figures(told), len(told))}
    return Outcome(table=table, notes=tally.notes())


def _told(
    job: Job, method: Method, train_on: Sequence[Video], test_on: Sequence[Video], name: str
) -> list[Told]:
    clips = [video.clip for video in train_on]
    localize = method(clips, job.seed, lambda *at: job.progress(f"training on {name}", *at))
    return [Told(video.entry.family, video.clip, localize(video.clip.features)) for video in test_on]


def _beside(told: Sequence[Told], family: str) -> int:
    return sum(not one.is_forged or one.family == family for one in told)
