"""Weights of a model as its authors would publish them, for updates that begin from a file."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def published(tmp_path: Path) -> Callable[[str], Path]:
    """Write random weights of a timm model by its name: for RGB, with a thousand classes and a licence."""

    def published(name: str) -> Path:
        # Most processes that test load neither.
        import timm
        import torch
        from safetensors.torch import save_file

        torch.manual_seed(11)
        file = tmp_path / f"{name}.safetensors"
        save_file(timm.create_model(name, pretrained=False).state_dict(), file, {"license": "CC0-1.0"})
        return file

    return published
