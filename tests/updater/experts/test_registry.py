"""Experts are registered as a whole or not at all, and what is damaged is told of."""

import pytest
from makers import WORTH

from detector.release.artifact import sha256_of
from updater.experts.check import ExpertError
from updater.experts.registry import ExpertRegistry, RegisteredExpert


@pytest.fixture
def registry(tmp_path):
    return ExpertRegistry(tmp_path)


@pytest.fixture
def row(tmp_path, contract):
    (tmp_path / "made.onnx").write_bytes(b"a graph")
    digest = sha256_of(tmp_path / "made.onnx")
    return RegisteredExpert(contract=contract.model_copy(update={"digest": digest}), worth=WORTH)


def test_what_was_added_is_there_until_it_is_removed(registry, row, tmp_path):
    assert registry.rows() == []
    registry.add(row, tmp_path / "made.onnx")
    assert registry.rows() == [row]
    assert [expert.path.read_bytes() for expert in registry.experts()] == [b"a graph"]
    registry.remove("small")
    assert registry.experts() == ()


def test_a_name_is_taken_once(registry, row, tmp_path):
    registry.add(row, tmp_path / "made.onnx")
    with pytest.raises(ExpertError, match="there is an expert small"):
        registry.add(row, tmp_path / "made.onnx")
    assert registry.rows() == [row]


@pytest.mark.parametrize("name", ["other", "../work", ""])
def test_only_an_expert_is_removed(registry, row, tmp_path, name):
    registry.add(row, tmp_path / "made.onnx")
    with pytest.raises(ExpertError, match=r"no expert is called .*: small"):
        registry.remove(name)
    assert (tmp_path / "made.onnx").is_file()


def test_a_damaged_file_is_told_of(registry, row, tmp_path):
    registry.add(row, tmp_path / "made.onnx")
    (tmp_path / "experts" / "small" / "expert.onnx").write_bytes(b"another")
    with pytest.raises(ExpertError, match=r"small .* is damaged: remove it, and add it anew"):
        registry.experts()
