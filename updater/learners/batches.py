"""What a batch is drawn from, by its number alone: ahead of time, and the same after an interruption."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from updater.learners.pools import draw_crops
from updater.rejection.training import aug_mix, reg_mixup

if TYPE_CHECKING:
    from updater.learners.step import Step
    from updater.learners.training import TrainingSet

_AHEAD = 2
