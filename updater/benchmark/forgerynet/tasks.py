"""ForgeryNet's tasks by name. To add one is a module with its `measure`, and a line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from updater.benchmark.forgerynet import classes, spatial, temporal
from updater.benchmark.forgerynet.choices import Job
from updater.benchmark.networks import images, videos
from updater.benchmark.report.outcome import Outcome
from updater.data.layouts.forgerynet import Medium


@dataclass(frozen=True)
class Task:
    """A task: what it is measured on, by which network where none is named, and how."""

    medium: Medium
    model: str
    """on data of ForgeryNet's size"""
    small_model: str
    """on our own media, in minutes of two cores"""
    measure: Callable[[Job], Outcome]
    check: Callable[[str], None]
    """raises for a model's name that is none, before any media are made or read"""


TASKS: Mapping[str, Task] = {
    "image": Task(
        "image", "legacy_xception", "highpass:mobilenetv3_small_100", classes.measure, images.check
    ),
    "spatial": Task("image", "localizer", "localizer", spatial.measure, spatial.check),
    "video": Task(
        "video",
        "x3d_m",
        "frames:highpass:mobilenetv3_small_100",
        classes.measure,
        partial(videos.check, offered=videos.FORGERYNETS),
    ),
    "temporal": Task("video", "convolutions", "convolutions", temporal.measure, temporal.check),
}
