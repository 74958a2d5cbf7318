"""What a task is given for one seed."""

from dataclasses import dataclass
from pathlib import Path

import torch

from updater.benchmark.data.entries import Entry
from updater.benchmark.forgerynet.choices import Choices
from updater.benchmark.forgerynet.families import Kinds
from updater.progress import Progress, unsaid


@dataclass(frozen=True)
class Job:
    """Media, choices and a seed. The three splits share no group."""

    train: tuple[Entry, ...]
    held_back: tuple[Entry, ...]
    """the validation, to set thresholds by; empty where it is what is reported, as the paper has it"""
    test: tuple[Entry, ...]
    kinds: Kinds
    choices: Choices
    seed: int
    device: torch.device
    folder: Path
    """for what training goes on from when it was interrupted; of this seed, media and choices alone"""
    cache: Path
    """for what was found out of files once: of all runs"""
    weights: Path | None = None
    """a file to begin with"""
    progress: Progress = unsaid
