"""The image task: is a picture forged, of which kind, by which family.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.1.1.
"""

import numpy as np

from updater.benchmark.data.listed import Tally
from updater.benchmark.data.tasks import LayoutError
from updater.benchmark.forgerynet import classes
from updater.benchmark.forgerynet.families import class_names
from updater.benchmark.forgerynet.job import Job
from updater.benchmark.forgerynet.pictures import test_crops, training_crop
from updater.benchmark.forgerynet.recipes import recipe_of
from updater.benchmark.forgerynet.sights import sights
from updater.benchmark.networks.images import check, front_of, make_image_network, published_px
from updater.benchmark.report.outcome import Outcome


def measure(job: Job) -> Outcome:
    """Train a network and test it. Raises what `prepared` raises."""
    return classes.measure(job, prepared(job))


def prepared(job: Job) -> classes.Prepared:
    """Look at the pictures, and say how a network is made and shown them.

    Raises NetworkError for a model that is none, and LayoutError where a side has no picture of a sort.
    """
    choices, tally = job.choices, Tally()
    check(choices.model)
    recipe = recipe_of("image", choices, job.device, published_px(choices.model))
    found = {}
    for part, entries in (("train", job.train), ("test", job.test)):
        found[part] = sights(
            entries,
            choices.input,
            job.cache,
            tally,
            lambda *at, part=part: job.progress(f"look at {part}", *at),
        )
        if len({one.entry.label for one in found[part]}) < 2:
            raise LayoutError(f"{part} needs reals and forgeries that can be decoded, and has not both")
    front = front_of(choices.model)
    outputs = len(class_names(job.kinds, choices.classes))
    return classes.Prepared(
        found["train"],
        found["test"],
        lambda: make_image_network(
            choices.model, outputs, recipe.px, job.weights, pretrained=choices.pretrained
        ),
        classes.Views(
            lambda sight, rng: front(training_crop(sight, choices, recipe.px, rng)),
            lambda sight: np.stack([front(crop) for crop in test_crops(sight, choices, recipe.px)]),
        ),
        recipe,
        tally.notes(),
    )
