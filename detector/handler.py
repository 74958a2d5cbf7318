"""The handler inside TorchServe: tensors from the worker, or whole media files from anyone with curl.

No pickle and no torch here; media is hostile, so it is decoded in ingest's sandbox.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.records import Timings
from detector.release.artifact import verify
from detector.release.contract import request_for
from detector.release.tensors import REQUEST_TYPE, TensorsError, decode, encode
from detector.second_look import run_second_pass, second_looks
from detector.second_pass.scan_places import clips, frame_crops_of_videos
from detector.serving.session import DeadlineError, ReleaseSession
from detector.serving.shared_request import SHARED_TYPE, SharedRequestError, read_shared, shared_folder
from detector.serving.torchserve import DEADLINE_S, RELEASE_HEADER
from detector.settings import DetectorSettings
from detector.verdicts import JudgedItem, Origin, build, evidence_of
from ingest.records import MediaError, MediaItem
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

_UNSUPPORTED_MEDIA, _BAD_REQUEST, _NOT_SHARED, _TIMED_OUT = 415, 400, 424, 504

_FROM_KAFKA_ALONE: Mapping[str, bool | set[str]] = {
    "id": True,
    "item": {"topic", "partition", "offset", "timestamp_ms", "media_id", "source", "declared_type"},
}
"""The fields of a verdict that a file sent by HTTP has not."""


class Handler:
    """One release in one TorchServe worker process."""

    def initialize(self, context: Any) -> None:
        """Verify the unpacked artifact and load its graphs, for the GPU that TorchServe gives this worker.

        Raises ArtifactError, TensorsError.
        """
        given = context.system_properties
        self._artifact = verify(Path(given["model_dir"]))
        settings = DetectorSettings()
        self._session = ReleaseSession(self._artifact, settings.model_threads, given["gpu_id"], DEADLINE_S)
        self._shared = shared_folder(settings)
        self._sandbox: Sandbox | None = None

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """Answer each request of a batch: safetensors with safetensors, media with a verdict as JSON.

        A request that can never be answered gets a 4xx and one line that says why, one that takes longer
        than DEADLINE_S 504. Each answer names the release by its digest.
        """
        return [self._answer(index, request, context) for index, request in enumerate(data)]

    def _answer(self, index: int, request: dict[str, Any], context: Any) -> bytes:
        context.set_response_header(index, RELEASE_HEADER, self._artifact.digest)
        # A form (curl -F) has the file under any name.
        fields = [request[name] for name in ("body", "data") if name in request] or list(request.values())
        body = fields[0] if fields else b""
        # TorchServe turns text into str and JSON into objects; neither is media.
        data = bytes(body) if isinstance(body, bytes | bytearray) else str(body).encode()
        try:
            kind = context.get_request_header(index, "content-type")
            if kind == SHARED_TYPE:
                data, kind = read_shared(data, self._shared), REQUEST_TYPE
            if kind == REQUEST_TYPE:
                answer = encode(self._session.score(decode(data)))
                content_type = REQUEST_TYPE
            elif "body" not in request and len(fields) > 1:
                return _refuse(context, index, _UNSUPPORTED_MEDIA, "form", "a form has one file")
            else:
                answer = self._judge(data)
                content_type = "application/json"
        except SharedRequestError as error:
            return _refuse(context, index, _NOT_SHARED, "not_shared", str(error))
        except TensorsError as error:
            return _refuse(context, index, _BAD_REQUEST, "tensors", str(error))
        except MediaError as error:
            return _refuse(context, index, _UNSUPPORTED_MEDIA, error.reason, str(error))
        except DeadlineError as error:
            return _refuse(context, index, _TIMED_OUT, "deadline_exceeded", str(error))
        context.set_response_content_type(index, content_type)
        return answer

    def _judge(self, data: bytes) -> bytes:
        if self._sandbox is None:
            # Only once it is needed: the worker of the stream sends tensors alone.
            self._sandbox = Sandbox(IngestSettings()).__enter__()
        started = time.perf_counter()
        manifest = self._artifact.manifest
        contract = manifest.contract
        decoded = self._sandbox.submit(data, contract.media_plan).result()
        decoded_at = time.perf_counter()
        apart = frame_crops_of_videos([decoded], manifest)
        output = self._session.score(request_for([decoded], contract, apart))
        timings = Timings(decode_s=decoded_at - started, model_s=time.perf_counter() - decoded_at)
        item = MediaItem(
            topic="",
            partition=0,
            offset=0,
            timestamp_ms=0,
            source="",
            digest=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
        )
        (verdict,) = build([Origin("", item, timings)], [decoded], output, self._artifact)
        (clip,) = clips([decoded], apart, output["features"], manifest)
        (evidence,) = evidence_of([decoded], output)
        judged = JudgedItem(verdict, evidence, lambda: data, clip, decoded.processor_s)
        looks = second_looks(self._artifact, self._session.score)
        (judged,) = run_second_pass([judged], looks, self._sandbox.submit)
        return judged.verdict.model_dump_json(indent=1, exclude=_FROM_KAFKA_ALONE).encode() + b"\n"


def _refuse(context: Any, index: int, status: int, reason: str, message: str) -> bytes:
    context.set_response_status(status, message.splitlines()[0][:200], index)
    context.set_response_content_type(index, "application/json")
    return json.dumps({"reason": reason, "message": message}).encode() + b"\n"
