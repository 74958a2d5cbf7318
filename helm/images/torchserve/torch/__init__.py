"""All that TorchServe 0.12 asks of torch here: the name of a class that no reply is an instance of.

TorchServe's Python worker imports torch for one line, which asks whether a reply is a torch.Tensor and then
pickles it (ts/protocol/otf_message_handler.py). Forgewatch's handler answers in bytes and scores with ONNX
Runtime, so that the 5 GB of torch and CUDA would be loaded for this name alone.
tests/system/test_torchserve_container.py holds TorchServe's worker to it.
"""


class Tensor:
    """What no reply is."""
