"""What only a GPU shows of serving: `make gpu-check` says of each line that it passed, failed or why not."""

import onnxruntime
import pytest
import torch

from detector.session import Session


def test_onnx_runtime_serves_on_the_gpu_under_torchserve():
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA device")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip(
            f"onnxruntime {onnxruntime.__version__} has no CUDA provider: onnxruntime-gpu would bring it"
        )
    pytest.skip(f"{Session.__module__} asks for the CPU provider alone, and so does TorchServe's handler")
