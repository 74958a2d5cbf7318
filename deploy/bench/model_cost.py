"""What an image costs a release's model, beside a ResNet18 on one picture of 224 px."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import timm
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from detector.model.export import write_onnx
from detector.release.contract import Contract, request_for
from detector.release.tensors import CROPS, ROWS, Request, TensorSpec
from detector.serving.session import Session
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import MediaSample

CROPS_AN_IMAGE = 6
_PAIRS, _WARM_UP = 60, 5
_SIDE_PX = 224


class ModelCost(BaseModel):
    """The release's time over the ResNet18's, both on one thread: median of pairs, and their outer tenths."""

    ratio: float
    low: float
    high: float
    release_ms: float
    resnet18_ms: float
    crops: int
    pairs: int


def model_cost(session: Session[Contract], samples: Sequence[MediaSample], folder: Path) -> ModelCost:
    """Time the first image of six crops through the session, which has one thread, and a ResNet18 in turn.

    The ResNet18 is timm's with weights made at random, exported into the folder. Raises ValueError
    where no sample has six crops.
    """
    request = six_crops(session, samples)
    yardstick = _resnet18(folder / "resnet18.onnx")
    picture = {"picture": np.random.default_rng(0).random((1, 3, _SIDE_PX, _SIDE_PX), np.float32)}
    pairs = in_turn(lambda: session.score(request), lambda: yardstick.run(None, picture))
    ratios = [release / resnet for release, resnet in pairs]
    low, *_, high = statistics.quantiles(ratios, n=10)
    return ModelCost(
        ratio=statistics.median(ratios),
        low=low,
        high=high,
        release_ms=1000 * statistics.median(release for release, _ in pairs),
        resnet18_ms=1000 * statistics.median(resnet for _, resnet in pairs),
        crops=CROPS_AN_IMAGE,
        pairs=len(pairs),
    )


def in_turn(first: Callable[[], Any], other: Callable[[], Any]) -> list[tuple[float, float]]:
    """Call both in turn, so that a machine whose speed drifts is as slow for one as for the other.

    Returns seconds of this thread's processor time for each pair of calls, after some that are not measured.
    """
    pairs = [(_seconds(first), _seconds(other)) for _ in range(_WARM_UP + _PAIRS)]
    return pairs[_WARM_UP:]


def _seconds(call: Callable[[], Any]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started


def six_crops(session: Session[Contract], samples: Sequence[MediaSample]) -> Request:
    """Return the request of the first image of six crops. Raises ValueError where none has so many."""
    plan, limit = session.contract.media_plan, IngestSettings().max_pixels
    for sample in samples:
        request = request_for([extract(sample.data, plan, limit)], session.contract)
        if len(request[CROPS]) == CROPS_AN_IMAGE:
            return request
    raise ValueError(f"no image of {CROPS_AN_IMAGE} crops among {len(samples)}")


def _resnet18(path: Path) -> onnxruntime.InferenceSession:
    torch.manual_seed(0)
    picture = TensorSpec(name="picture", dtype="float32", shape=(ROWS, 3, _SIDE_PX, _SIDE_PX))
    write_onnx(_Yardstick(), [picture], path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class _Yardstick(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = timm.create_model("resnet18", pretrained=False)

    def forward(self, picture: Tensor) -> dict[str, Tensor]:
        return {"logits": self.network(picture)}
