from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from detector.scored import (
    OUTPUTS,
    Scored,
    TensorsError,
    beyond_tolerance,
    decode_request,
    decode_scored,
    differences,
    encode_request,
    encode_scored,
)


def scored(rows: int, neighbours: int = 5, features: int = 7) -> Scored:
    rng = np.random.default_rng(rows)
    shapes = {
        "logits": (rows, 3),
        "embedding": (rows, 4),
        "features": (rows, features),
        "neighbour_distance": (rows, neighbours),
    }
    arrays = {
        name: rng.normal(size=shapes.get(name, (rows,))).astype(np.float32)
        for name in OUTPUTS
        if name != "neighbour_index"
    }
    return Scored(**arrays, neighbour_index=np.arange(rows * neighbours).reshape(rows, neighbours))


@given(rows=st.integers(1, 5), neighbours=st.sampled_from([0, 5]), features=st.sampled_from([0, 7]))
def test_a_result_survives_the_wire(rows: int, neighbours: int, features: int) -> None:
    sent = scored(rows, neighbours, features)
    got = decode_scored(encode_scored(sent))
    for name in OUTPUTS:
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
        assert getattr(got, name).dtype == getattr(sent, name).dtype


def test_a_request_survives_the_wire_even_from_views() -> None:
    crops = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)[::-1]
    pooling = np.array([[0.25, 0.75]], np.float32)
    got_crops, got_pooling = decode_request(encode_request(crops, pooling))
    np.testing.assert_array_equal(got_crops, crops)
    np.testing.assert_array_equal(got_pooling, pooling)


CROPS = np.zeros((2, 8, 8, 3), np.uint8)
POOLING = np.zeros((1, 2), np.float32)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 40,
        save({"crops": CROPS}),
        save({"crops": CROPS.astype(np.float32), "pooling": POOLING}),
        save({"crops": CROPS[:, :4], "pooling": POOLING}),
        save({"crops": CROPS[:0], "pooling": POOLING[:, :0]}),
        save({"crops": CROPS, "pooling": POOLING[:, :1]}),
        save({"crops": CROPS, "pooling": POOLING[:0]}),
        save({"crops": CROPS, "pooling": POOLING[0]}),
        save({"crops": CROPS, "pooling": POOLING.astype(np.float64)}),
        save({"crops": CROPS, "pooling": POOLING, "more": POOLING}),
    ],
)
def test_a_request_that_is_not_crops_and_pooling_is_refused(body: bytes) -> None:
    with pytest.raises(TensorsError):
        decode_request(body)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_of_requests_fail_otherwise(body: bytes) -> None:
    with pytest.raises(TensorsError):
        decode_request(body)


def test_a_reply_without_an_output_is_refused() -> None:
    with pytest.raises(TensorsError, match="novelty"):
        decode_scored(save({name: getattr(scored(1), name) for name in OUTPUTS if name != "novelty"}))


def test_a_result_equals_itself_and_no_other() -> None:
    one = scored(3)
    assert beyond_tolerance(differences(one, one)) == []
    moved = replace(one, logits=one.logits + 1)
    assert [phrase.split()[0] for phrase in beyond_tolerance(differences(moved, one))] == ["logits"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_never_equal(value: float) -> None:
    one = scored(3)
    wrong = replace(one, energy=np.full(3, value, np.float32))
    assert differences(wrong, one)["energy"] == np.inf
    assert differences(wrong, wrong)["energy"] == np.inf


def test_other_shapes_are_never_equal() -> None:
    assert differences(scored(2), scored(3))["novelty"] == np.inf
