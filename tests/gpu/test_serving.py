"""What only a GPU shows of serving: `make gpu-check` says of each line that it passed, failed or why not."""

import numpy as np
import onnxruntime
import pytest
from handler_calls import Context

from detector.handler import Handler
from detector.release.tensors import REQUEST_TYPE, beyond_tolerance, decode, differences, encode
from detector.serving.session import open_session


def test_torchserve_s_handler_scores_on_the_gpu_as_on_the_cpu(gpu, untrained_artifact):
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip(
            f"onnxruntime {onnxruntime.__version__} has no CUDA provider: onnxruntime-gpu would bring it"
        )
    side = untrained_artifact.manifest.contract.crop_plan.crop_px
    crops = np.random.default_rng(0).integers(0, 256, (40, side, side, 3), dtype=np.uint8)
    request = {"crops": crops, "pooling": np.kron(np.eye(8), np.full(5, 0.2)).astype(np.float32)}
    handler, context = Handler(), Context(untrained_artifact.folder, REQUEST_TYPE, gpu=0)
    handler.initialize(context)
    assert handler._session._session.get_providers()[0] == "CUDAExecutionProvider"
    (answer,) = handler.handle([{"body": encode(request)}], context)
    here = open_session(untrained_artifact, threads=1).score(request)
    assert beyond_tolerance(differences(decode(answer), here)) == []
