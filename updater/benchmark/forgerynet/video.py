"""The video task: is a video forged, of which kind, by which family.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.1.3. With
crops single the middle clip is asked; with multi the mean over clips that cover the video is the answer.
"""

from dataclasses import replace

from updater.benchmark.data.listed import Tally
from updater.benchmark.data.tasks import LayoutError
from updater.benchmark.forgerynet import classes
from updater.benchmark.forgerynet.clips import test_clips, training_clip, video_sights
from updater.benchmark.forgerynet.families import class_names
from updater.benchmark.forgerynet.job import Job
from updater.benchmark.forgerynet.recipes import recipe_of
from updater.benchmark.networks.videos import check, make_video_network, sampling_of
from updater.benchmark.report.outcome import Outcome


def measure(job: Job) -> Outcome:
    """Train a network and test it. Raises what `prepared` raises."""
    return classes.measure(job, prepared(job))


def prepared(job: Job) -> classes.Prepared:
    """Look at the videos, and say how a network is made and shown them.

    Raises NetworkError and BackboneError for a model that is none, and LayoutError where a side has no video
    of a sort.
    """
    choices, tally = job.choices, Tally()
    check(choices.model)
    sampling = sampling_of(choices.model)
    recipe = recipe_of("video", choices, job.device, sampling.px)
    recipe = replace(recipe, frames=sampling.frames or recipe.frames, stride=sampling.stride or recipe.stride)
    found = {}
    for part, entries in (("train", job.train), ("test", job.test)):
        found[part] = video_sights(
            entries, job.cache, tally, lambda *at, part=part: job.progress(f"look at {part}", *at)
        )
        if len({one.entry.label for one in found[part]}) < 2:
            raise LayoutError(f"{part} needs reals and forgeries that can be decoded, and has not both")
    outputs = len(class_names(job.kinds, choices.classes))
    return classes.Prepared(
        found["train"],
        found["test"],
        lambda: make_video_network(
            choices.model, outputs, recipe.px, recipe.frames, job.weights, pretrained=choices.pretrained
        ),
        classes.Views(
            lambda sight, rng: training_clip(sight, choices, recipe, sampling.segments, rng),
            lambda sight: test_clips(sight, choices, recipe, sampling.segments),
        ),
        recipe,
        tally.notes(),
    )
