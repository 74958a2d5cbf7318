"""Embeddings as wide as the network's, of classes whose places are known, so that near and far are too."""

from dataclasses import dataclass

import numpy as np
import pytest

from detector.release.manifest import Architecture
from updater.benchmark.rejection.evidence import Evidence, FitSet

CLASSES = 6
EACH = 24
WIDTH = Architecture().width
_LENGTH = 5.0
_SPREAD = 0.35


@dataclass(frozen=True)
class Space:
    """Classes around means in random directions, and a head that points to them."""

    means: np.ndarray
    """[CLASSES, WIDTH], each of length 5; a class's items lie 2.8 around theirs"""

    @property
    def head(self):
        """[CLASSES, WIDTH]"""
        return (self.means * (2 / _LENGTH)).astype("f")

    def evidence(self, embedding):
        """What the network would say of these rows, [n, WIDTH]."""
        rows = np.asarray(embedding, np.float32)
        n = len(rows)
        return Evidence(rows @ self.head.T, rows, np.zeros((n, 0), "f"), np.zeros(n, "f"))

    def around(self, places, count, seed):
        """`count` items around each place."""
        noise = np.random.default_rng(seed).normal(0, _SPREAD, (len(places), count, WIDTH))
        return self.evidence((np.asarray(places)[:, None] + noise).reshape(-1, WIDTH))

    def known(self, count=EACH):
        """`count` training items of each class, and versions of them as AugMix would make them."""
        items = self.around(self.means, count, 0)
        noise = np.random.default_rng(1).normal(0, 0.1, (2, *items.embedding.shape))
        versions = tuple(self.evidence(items.embedding + one) for one in noise)
        targets = np.repeat(np.arange(CLASSES), count)
        return FitSet(items, targets, self.head, np.zeros(CLASSES, "f"), versions=versions)


@pytest.fixture(scope="session")
def space():
    """Six classes in the embedding's width."""
    means = np.random.default_rng(100).normal(size=(CLASSES, WIDTH))
    return Space(_LENGTH * means / np.linalg.norm(means, axis=1, keepdims=True))


@pytest.fixture
def old():
    """The first half of the classes are exemplars of earlier steps."""
    return np.repeat(np.arange(CLASSES) < CLASSES // 2, EACH)
