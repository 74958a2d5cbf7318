"""A TorchServe with the limit that it has by default, against full requests and beyond."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from deploy.local.torchserve import start_torchserve
from detector.batch import judge, open_batch
from detector.release.artifact import Artifact
from detector.release.tensors import ModelOutput, Request
from detector.routing import Route
from detector.serving import torchserve_launch
from detector.serving.mar import pack
from detector.serving.torchserve import RequestTooLargeError, TorchServe
from detector.settings import DetectorSettings
from ingest.records import Decoded, InRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

CROPS = 9


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DetectorSettings]:
    lines = torchserve_launch._PROPERTIES.splitlines(keepends=True)
    stock = "".join(line for line in lines if not line.startswith("max_request_size"))
    assert stock != torchserve_launch._PROPERTIES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchserve_launch, "_PROPERTIES", stock)
        server = start_torchserve(tmp_path_factory.mktemp("stock"))
    yield DetectorSettings(
        torchserve_url=server.inference_url,
        torchserve_management_url=server.management,
        model_store_dir=server.model_store,
    )
    server.stop()


@pytest.fixture(scope="module")
def client(settings: DetectorSettings, untrained_artifact: Artifact) -> Iterator[TorchServe]:
    with TorchServe(settings) as opened:
        pack(untrained_artifact, settings.model_store_dir)
        opened.register(untrained_artifact)
        yield opened


class Decoding:
    """Crops of noise at once, in the place of the sandbox."""

    def submit(self, media: Callable[[], bytes], plan: object) -> Future[Decoded]:
        crops = np.random.default_rng(list(media())).integers(0, 256, (CROPS, 64, 64, 3), dtype=np.uint8)
        future: Future[Decoded] = Future()
        future.set_result(Decoded("image", "PNG", 64, 64, 1, crops, ()))
        return future


def test_a_request_beyond_the_limit_is_told_apart_and_the_connection_goes_on(
    client: TorchServe, untrained_artifact: Artifact
) -> None:
    for crops, fits in ((540, False), (500, True), (540, False), (500, True)):
        request = {
            "crops": np.zeros((crops, 64, 64, 3), np.uint8),
            "pooling": np.full((1, crops), 1 / crops, np.float32),
        }
        if fits:
            assert client.predict(untrained_artifact, request)["logits"].shape == (1, 3)
        else:
            with pytest.raises(RequestTooLargeError):
                client.predict(untrained_artifact, request)


@pytest.mark.parametrize("max_request_bytes", [DetectorSettings().max_request_bytes, 50_000_000])
def test_a_full_batch_is_scored_whatever_the_limit_was_set_to(
    client: TorchServe, settings: DetectorSettings, untrained_artifact: Artifact, max_request_bytes: int
) -> None:
    sandbox: Any = Decoding()
    refused = 0

    def score(artifact: Artifact, request: Request) -> ModelOutput:
        nonlocal refused
        try:
            return client.predict(artifact, request)
        except RequestTooLargeError:
            refused += 1
            raise

    records = [InRecord("media", 0, i, 0, None, b"\x89PNG" + bytes([i]), ()) for i in range(64)]
    batch = open_batch(records, Route(untrained_artifact), sandbox, IngestSettings())
    wide = settings.model_copy(update={"max_request_crops": 10_000, "max_request_bytes": max_request_bytes})
    judged = judge(batch, score, wide, 900_000)
    assert [result.verdict.id for result in judged if result.verdict] == [f"media-0-{i}" for i in range(64)]
    assert (refused > 0) == (max_request_bytes > 6_553_500)


def test_an_item_that_never_fits_is_the_only_one_without_a_verdict(
    client: TorchServe,
    settings: DetectorSettings,
    untrained_artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox: Any = Decoding()
    records = [InRecord("media", 0, i, 0, None, b"\x89PNG" + bytes([i]), ()) for i in range(2)]
    few = open_batch(records, Route(untrained_artifact), sandbox, IngestSettings())
    monkeypatch.setattr(f"{__name__}.CROPS", 600)
    many = open_batch(
        [InRecord("media", 0, 2, 0, None, b"\x89PNGx", ())],
        Route(untrained_artifact),
        sandbox,
        IngestSettings(),
    )
    both = type(few)((*few.opened, *many.opened))
    judged = judge(
        both,
        lambda artifact, request: client.predict(artifact, request),
        settings,
        900_000,
    )
    assert [result.error and result.error.reason for result in judged] == [None, None, "request_too_large"]
