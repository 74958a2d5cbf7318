"""The locks for GPUs are those for processors, with FAISS, ONNX Runtime and CUDA's libraries exchanged."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


def pins(path: Path) -> dict[str, str]:
    """The version of each distribution that a lock names for this platform."""
    lines = re.findall(r"^([a-z0-9].*?)(?: \\)?$", path.read_text(), re.M)
    named = [Requirement(line) for line in lines]
    return {pin.name: str(pin.specifier) for pin in named if pin.marker is None or pin.marker.evaluate()}


@pytest.mark.parametrize(
    "name", ["requirements", "helm/images/worker", "helm/images/torchserve", "helm/images/updater"]
)
def test_a_gpu_s_lock_exchanges_two_packages_and_brings_cuda_s_libraries(name: str) -> None:
    processor, gpu = pins(ROOT / f"{name}.lock"), pins(ROOT / f"{name}-gpu.lock")
    assert processor.keys() - gpu.keys() == {"faiss-cpu", "onnxruntime"}
    added = {package for package in gpu.keys() - processor.keys() if not package.startswith("nvidia-")}
    assert added == {"faiss-gpu", "onnxruntime-gpu"}
    assert {package: gpu[package] for package in processor.keys() & gpu.keys()} == {
        package: processor[package] for package in processor.keys() & gpu.keys()
    }
    assert "://" not in (ROOT / f"{name}-gpu.lock").read_text()
