import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.release.tensors import ModelOutput, TensorsError, beyond_tolerance, decode, differences, encode


def output(rows: int, neighbours: int = 5, features: int = 7) -> ModelOutput:
    rng = np.random.default_rng(rows)
    shapes = {
        "logits": (rows, 3),
        "features": (rows, features),
        "energy": (rows,),
        "novelty": (rows,),
        "neighbour_distance": (rows, neighbours),
    }
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return arrays | {"neighbour_index": np.arange(rows * neighbours).reshape(rows, neighbours)}


@given(rows=st.integers(1, 5), neighbours=st.sampled_from([0, 5]), features=st.sampled_from([0, 7]))
def test_arrays_survive_the_wire(rows: int, neighbours: int, features: int) -> None:
    sent = output(rows, neighbours, features)
    got = decode(encode(sent))
    assert got.keys() == sent.keys()
    for name in sent:
        np.testing.assert_array_equal(got[name], sent[name])
        assert got[name].dtype == sent[name].dtype


def test_arrays_survive_the_wire_even_from_views() -> None:
    crops = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)[::-1]
    np.testing.assert_array_equal(decode(encode({"crops": crops}))["crops"], crops)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail_otherwise(body: bytes) -> None:
    with pytest.raises(TensorsError):
        decode(body)


def test_a_result_equals_itself_and_no_other() -> None:
    one = output(3)
    assert beyond_tolerance(differences(one, one)) == []
    moved = {**one, "logits": one["logits"] + 1}
    assert [phrase.split()[0] for phrase in beyond_tolerance(differences(moved, one))] == ["logits"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_never_equal(value: float) -> None:
    one = output(3)
    wrong = {**one, "energy": np.full(3, value, np.float32)}
    assert differences(wrong, one)["energy"] == np.inf
    assert differences(wrong, wrong)["energy"] == np.inf


def test_other_shapes_are_never_equal() -> None:
    assert differences(output(2), output(3))["novelty"] == np.inf


def test_an_output_that_is_missing_is_never_equal() -> None:
    one = output(2)
    assert differences({name: one[name] for name in one if name != "novelty"}, one)["novelty"] == np.inf


def test_neighbours_at_the_same_distance_may_change_places() -> None:
    one = output(2)
    assert "neighbour_index" not in differences({**one, "neighbour_index": one["neighbour_index"][::-1]}, one)


def off(name: str, rows: int, by: float) -> list[str]:
    """What is said of eight rows where so many are off by this in one output."""
    one = {"logits": np.zeros((8, 3), np.float32)} | {
        output: np.zeros(8, np.float32) for output in ("energy", "novelty")
    }
    moved = {key: value.copy() for key, value in one.items()}
    moved[name][:rows] += by
    return [phrase.split()[0] for phrase in beyond_tolerance(differences(moved, one))]


def test_rounding_may_choose_another_neighbour_in_a_quarter_of_the_rows_and_no_more() -> None:
    assert off("novelty", rows=2, by=0.3) == []
    assert off("novelty", rows=3, by=0.3) == ["novelty"]
    assert off("novelty", rows=1, by=0.6) == ["novelty"]
    assert off("logits", rows=2, by=0.3) == []
    assert off("logits", rows=3, by=0.002) == ["logits"]
    assert off("energy", rows=1, by=0.3) == ["energy"]


def test_a_score_that_nobody_named_a_tolerance_for_is_held_to_one() -> None:
    one, moved = {"max_logit": np.zeros(1, np.float32)}, {"max_logit": np.full(1, 0.02, np.float32)}
    assert beyond_tolerance(differences(moved, one)) == ["max_logit differs by 0.02, allowed 0.01"]
