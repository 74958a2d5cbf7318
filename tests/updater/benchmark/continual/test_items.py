"""Parts of a stream put together."""

import numpy as np

from updater.benchmark.continual.items import joined


def test_a_part_without_an_item_changes_nothing_wherever_it_stands(labelled):
    some, other = labelled({"a/real": 2}), labelled({"a/blocky": 3}, seed=1)
    none = some.take([])
    plain = joined([some, other])
    assert plain.starts.tolist() == [0, 2, 4, 6, 8, 10]
    for parts in (
        [none, some, other],
        [some, none, none, other],
        [some, other, none],
        [none, none, some, other],
    ):
        found = joined(parts)
        assert found.starts.tolist() == plain.starts.tolist()
        assert found.ids == plain.ids
        assert np.array_equal(found.crops, plain.crops)
    assert joined([none, none]).starts.tolist() == [0]
