"""However a request pools its crops, no run of a graph has more of them than an item can have.

A run's memory grows with its crops: 1,220 of 128 px at once were seen to take 5.2 GB.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from detector.release import contract as contract_module
from detector.release.contract import Contract, crops_and_pooling
from detector.release.crop_graphs import MapContract, ScanContract
from detector.release.tensors import MOST_CROPS, TensorsError, TensorSpec
from ingest.records import CropPlan

CONTRACT = Contract(
    inputs=crops_and_pooling(CropPlan(crop_px=1)),
    outputs=tuple(
        TensorSpec(name=name, dtype=dtype, shape=("rows",)) for name, dtype in contract_module._NEEDED.items()
    ),
)


class Graph:
    """Stands for a graph, and keeps how many crops each of its runs had."""

    def __init__(self) -> None:
        self.crops: list[int] = []

    def __call__(self, names: list[str], feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        self.crops.append(len(feed["crops"]))
        return [np.zeros(len(feed["pooling"])) for _ in names]


def pooled(crops: int, *rows: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """A request of so many crops, each row the mean of those from the first number up to the second."""
    pooling = np.zeros((len(rows), crops), np.float32)
    for row, (first, past) in enumerate(rows):
        pooling[row, first:past] = 1 / max(past - first, 1)
    return {"crops": np.zeros((crops, 1, 1, 3), np.uint8), "pooling": pooling}


ATTACKS = {
    "one item": pooled(1220, (0, 1220)),
    "rows that overlap": pooled(1220, *((i, i + 2) for i in range(1219))),
    "a row of nothing": pooled(1220, (0, 0)),
    "first and last": pooled(1220, (0, 1220), (0, 1), (1219, 1220)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_more_crops_together_than_an_item_has_are_refused_before_anything_runs(attack: str) -> None:
    graph = Graph()
    with pytest.raises(TensorsError, match="1220 crops are pooled together: an item has at most 256"):
        CONTRACT.run_graph(graph, ATTACKS[attack])
    assert graph.crops == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_the_bound_they_would_run_at_once(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(contract_module, "MOST_CROPS", 2000)
    graph = Graph()
    CONTRACT.run_graph(graph, ATTACKS[attack])
    assert max(graph.crops) == 1220


@given(
    st.integers(1, 1500).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, 400)), min_size=1, max_size=20),
        )
    )
)
def test_no_run_has_more_crops_than_an_item_can_have(shape: tuple[int, list[tuple[int, int]]]) -> None:
    crops, rows = shape
    graph = Graph()
    try:
        answer = CONTRACT.run_graph(graph, pooled(crops, *((i, min(i + n, crops)) for i, n in rows)))
    except TensorsError:
        assert graph.crops == []
    else:
        assert max(graph.crops) <= MOST_CROPS
        assert len(answer["energy"]) == len(rows)


def test_as_many_crops_as_the_plan_gives_an_item_are_taken() -> None:
    plan = CropPlan(crop_px=1, frames=32)
    contract = CONTRACT.model_copy(update={"inputs": crops_and_pooling(plan)})
    assert (CONTRACT.most_of_item, contract.most_of_item) == (MOST_CROPS, 32 * (9 + 3 * 4))
    graph = Graph()
    contract.run_graph(graph, pooled(672, (0, 672)))
    assert graph.crops == [672]


def test_many_items_of_one_request_are_run_few_crops_at_a_time() -> None:
    graph = Graph()
    CONTRACT.run_graph(graph, pooled(1220, *((i, i + 1) for i in range(1220))))
    assert max(graph.crops) == contract_module._RUN_CROPS


def test_a_picture_of_too_many_crops_is_not_mapped_and_a_clip_of_too_many_frames_not_scanned() -> None:
    graph, crops = Graph(), np.zeros((257, 64, 64, 3), np.uint8)
    maps = MapContract(crop_px=64, threshold=0.5, reals_marked=0, reals=1)
    with pytest.raises(TensorsError, match="257 crops of one picture: at most 256 are mapped at once"):
        maps.run_graph(graph, {"crops": crops, "of_picture": np.zeros(257, np.int64)})
    scans = ScanContract(crop_px=64, threshold=0.4, reals_told=0, reals=20)
    with pytest.raises(TensorsError, match="257 frames of one clip: at most 96 are scanned"):
        scans.run_graph(graph, {"crops": crops})
    assert graph.crops == []
