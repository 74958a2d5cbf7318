"""What an expert is worth is measured on held-back items, each source for itself, and its cost is bounded."""

from dataclasses import replace

import numpy as np
import pytest

from detector.serving.session import Session
from updater.experts import look
from updater.experts import registry as measuring
from updater.experts.build import Layout, build
from updater.experts.check import ExpertError
from updater.experts.look import Expert, logits_of
from updater.experts.registry import worth_of

NAME = "test_efficientnet"


@pytest.fixture
def expert(checkpoint, contract, tmp_path):
    path, _ = checkpoint()
    return Expert(build(Layout(path, architecture=NAME), contract, tmp_path / "e.onnx"), tmp_path / "e.onnx")


@pytest.fixture
def no_cost(monkeypatch):
    monkeypatch.setattr(measuring, "cost_of", lambda expert, items: (0.01, 0.02))


def test_an_items_logit_is_the_mean_of_its_crops(expert, labelled, tmp_path):
    items = labelled({"real": 3, "blocky": 2})
    each = logits_of(expert, items)
    alone = [
        logits_of(expert, replace(items, crops=items.crops[[row]], starts=np.array([0, 1])))[0]
        for row in range(4)
    ]
    assert each[:2] == pytest.approx([np.mean(alone[:2]), np.mean(alone[2:])], abs=2e-3)
    assert np.array_equal(logits_of(expert, items, tmp_path / "kept"), each)


def test_each_picture_is_seen_once_but_for_damaged_or_other_ones(expert, labelled, tmp_path, monkeypatch):
    looked, score = [], Session.score
    monkeypatch.setattr(
        Session, "score", lambda own, asked: looked.append(len(asked["pictures"])) or score(own, asked)
    )
    monkeypatch.setattr(look, "_AT_ONCE", 3)
    monkeypatch.setattr(look, "_WRITTEN_AFTER", 3)
    items, kept = labelled({"real": 3, "blocky": 2}), tmp_path / "kept"

    def stop(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        logits_of(expert, items, kept, stop)
    each = logits_of(expert, items, kept)
    assert sum(looked) == len(items.crops)
    assert np.array_equal(logits_of(expert, items, kept), each)
    assert sum(looked) == len(items.crops)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    other = replace(expert, contract=expert.contract.model_copy(update={"digest": "b" * 64}))
    (kept / ("b" * 32)).write_bytes(whole)
    for of, broken in (
        (expert, whole[:-1] + bytes([whole[-1] ^ 1])),
        (expert, whole[:50]),
        (expert, b""),
        (other, whole),
    ):
        (kept / of.contract.digest[:32]).write_bytes(broken)
        looked.clear()
        assert np.array_equal(logits_of(of, items, kept), each)
        assert sum(looked) == len(items.crops)


def test_a_logit_that_is_no_number_is_one_line(expert, labelled, monkeypatch):
    monkeypatch.setattr(Session, "score", lambda *_: {"logit": np.full(4, np.inf, np.float32)})
    with pytest.raises(ExpertError, match="gives a logit that is no number: remove it"):
        logits_of(expert, labelled({"real": 2}))


def test_each_source_is_told_for_itself(expert, labelled, no_cost, monkeypatch):
    items = labelled({"real": 20, "blocky": 20})
    items = replace(items, sources=("a",) * 10 + ("b",) * 20 + ("c",) * 10)
    monkeypatch.setattr(
        measuring, "logits_of", lambda expert, items, *others: np.array(items.families) == "blocky"
    )
    found = worth_of(expert, items)
    assert (found.everywhere.auc, found.everywhere.reals, found.everywhere.fakes) == (1, 20, 20)
    assert [(one.source, one.auc) for one in found.sources] == [("a", None), ("b", 1.0), ("c", None)]


def test_one_that_tells_the_wrong_way_round_is_refused_with_advice(expert, labelled, no_cost, monkeypatch):
    monkeypatch.setattr(
        measuring, "logits_of", lambda expert, items, *others: np.array(items.families) == "real"
    )
    with pytest.raises(ExpertError, match=r"holds reals for forged here .*: try --fake-logit 0"):
        worth_of(expert, labelled({"real": 20, "blocky": 20}))


def test_a_memory_of_one_kind_is_refused(expert, labelled):
    with pytest.raises(ExpertError, match="holds back no labelled forgery"):
        worth_of(expert, labelled({"real": 4}))


def test_crops_of_another_size_are_refused(expert, labelled):
    items = labelled({"real": 2})
    with pytest.raises(ExpertError, match="takes pictures of 64 px, and the memory has pictures of 32 px"):
        logits_of(expert, replace(items, crops=items.crops[:, :32, :32]))


@pytest.mark.slow
def test_what_costs_more_than_the_stream_can_pay_is_refused(expert, labelled, monkeypatch):
    items = labelled({"real": 2, "blocky": 2})
    assert all(seconds > 0 for seconds in measuring.cost_of(expert, items))
    monkeypatch.setattr(measuring, "MOST_SECONDS", 0.0)
    with pytest.raises(ExpertError, match="s of one core an image, and the stream can pay 0"):
        measuring.cost_of(expert, items)
