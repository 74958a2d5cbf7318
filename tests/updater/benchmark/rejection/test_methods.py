"""What holds of every post-hoc score."""

from pathlib import Path

import numpy as np
import pytest

from detector.model.scores import SCORES
from updater.benchmark.rejection import methods
from updater.benchmark.rejection.evidence import Evidence, Known
from updater.benchmark.rejection.methods import POST_HOC
from updater.measures import auroc

CLASSES, WIDTH, FEATURES = 3, 8, 6
WEIGHT = 3 * np.eye(CLASSES, WIDTH, dtype="f")


def items(seed: int, count: int, *, unknown: bool = False) -> Evidence:
    """Known items lie along their class's axis; unknown ones along an axis that no class has."""
    rng = np.random.default_rng(seed)
    axis = np.full(count, CLASSES + 1) if unknown else np.arange(count) % CLASSES
    embedding = 2 * np.eye(WIDTH)[axis] + rng.normal(0, 0.2, (count, WIDTH))
    features = 5 * np.eye(FEATURES)[axis % FEATURES] + rng.normal(0, 1, (count, FEATURES))
    pseudo = rng.normal(3 if unknown else -3, 1, count)
    arrays = (embedding @ WEIGHT.T, embedding, features, pseudo)
    return Evidence(*(array.astype("f") for array in arrays))


KNOWN = Known(
    items(0, 60),
    np.arange(60) % CLASSES,
    WEIGHT,
    np.zeros(CLASSES, "f"),
    items(1, 30),
    np.arange(30) % CLASSES,
)
every_method = pytest.mark.parametrize("name", POST_HOC)


def part(evidence: Evidence, rows: slice) -> Evidence:
    return Evidence(
        evidence.logits[rows], evidence.embedding[rows], evidence.features[rows], evidence.pseudo_logit[rows]
    )


@every_method
def test_a_score_is_higher_for_less_familiar_items(name: str) -> None:
    score = POST_HOC[name](KNOWN)
    assert auroc(score(items(2, 60, unknown=True)), score(items(3, 60))) > 0.95


@every_method
def test_a_score_gives_one_float64_for_each_item_whatever_the_others_are(name: str) -> None:
    score, fresh = POST_HOC[name](KNOWN), items(3, 12)
    together = score(fresh)
    assert together.dtype == np.float64
    assert together.shape == (12,)
    alone = np.concatenate([score(part(fresh, slice(i, i + 1))) for i in range(12)])
    assert together == pytest.approx(alone, rel=1e-5, abs=1e-5)
    assert score(part(fresh, slice(0, 0))).shape == (0,)


@every_method
def test_scoring_changes_nothing_and_can_be_done_again(name: str) -> None:
    fresh, again = items(3, 12), items(3, 12)
    score = POST_HOC[name](KNOWN)
    assert (score(fresh) == score(again)).all()
    for field in ("logits", "embedding", "features", "pseudo_logit"):
        assert (getattr(fresh, field) == getattr(again, field)).all()


def test_one_name_is_one_score() -> None:
    own = {path.stem for path in Path(methods.__file__).parent.glob("*.py")}
    assert not own & SCORES.keys(), "a score of the gate lies in detector/scores alone"
    assert POST_HOC.keys() >= SCORES.keys()
