"""ForgeryNet's tasks by name. To add one is a module with its `measure`, and a line."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from updater.benchmark.data.forgerynet_rows import Medium
from updater.benchmark.forgerynet import image, spatial, temporal, video
from updater.benchmark.forgerynet.job import Job
from updater.benchmark.networks import images, videos
from updater.benchmark.report.outcome import Outcome
from updater.benchmark.synthetic.forgerynet_pictures import write_forgerynet_pictures
from updater.benchmark.synthetic.forgerynet_videos import write_forgerynet_videos
from updater.progress import Progress

_PROCESSES = os.cpu_count() or 1


@dataclass(frozen=True)
class Task:
    """A task: what it is measured on, by which network where none is named, and how."""

    medium: Medium
    model: str
    """on data of ForgeryNet's size"""
    small_model: str
    """on our own media, in minutes of two cores"""
    measure: Callable[[Job], Outcome]
    check: Callable[[str], None] = lambda model: None
    """raises for a model's name that is none, before any media are made or read"""


TASKS: Mapping[str, Task] = {
    "image": Task(
        "image",
        "legacy_xception",
        "highpass:mobilenetv3_small_100",
        image.measure,
        images.check,
    ),
    "spatial": Task("image", "localizer", "localizer", spatial.measure, spatial.check),
    "video": Task("video", "x3d_m", "frames:highpass:mobilenetv3_small_100", video.measure, videos.check),
    "temporal": Task("video", "convolutions", "convolutions", temporal.measure, temporal.check),
}


def _pictures(folder: Path, progress: Progress) -> None:
    write_forgerynet_pictures(
        folder, processes=_PROCESSES, progress=lambda *at: progress("make pictures", *at)
    )


def _videos(folder: Path, progress: Progress) -> None:
    write_forgerynet_videos(folder, processes=_PROCESSES, progress=lambda *at: progress("make videos", *at))


TREES: Mapping[Medium, Callable[[Path, Progress], None]] = {"image": _pictures, "video": _videos}
"""what writes our own media in ForgeryNet's layout into a new folder: the same files every time"""
