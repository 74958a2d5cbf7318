import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from updater.benchmark.deeperforensics.figures import figures


def test_clips_are_told_right_by_a_score_of_a_half_whatever_the_classes_sizes():
    found = figures([0.5, 0.4, 0.1, 0.2, 0.7], [1, 1, 0, 0, 0])
    assert found["acc"] == pytest.approx(3 / 5)
    assert found["balanced_acc"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found["auc"] == pytest.approx(4 / 6)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=4, max_size=60))
def test_all_figures_are_those_of_scikit_learn(clips):
    scores, labels = np.array([one for one, _ in clips]), np.array([forged for _, forged in clips], int)
    labels[:2] = 0, 1
    found = figures(scores, labels)
    said = (scores >= 0.5).astype(int)
    assert found["acc"] == pytest.approx(metrics.accuracy_score(labels, said))
    assert found["balanced_acc"] == pytest.approx(metrics.balanced_accuracy_score(labels, said))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(labels, scores))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, scores.clip(1e-7, 1 - 1e-7)))


def test_one_class_alone_has_no_auc():
    found = figures([0.2, 0.9], [1, 1])
    assert found["acc"] == 0.5
    assert math.isnan(found["auc"])
    assert math.isnan(found["balanced_acc"])
