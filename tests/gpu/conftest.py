"""What tests on a GPU share."""

import pytest
import torch


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA device")
    return torch.device("cuda")
