"""What TorchServe hands to a handler, for tests that call one in their own process."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from detector.handler import Handler


class Context:
    """TorchServe's: one request of a content type, and what was answered."""

    def __init__(self, folder: Path, content_type: str = "image/png", gpu: int | None = None) -> None:
        self.system_properties = {"model_dir": str(folder), "gpu_id": gpu}
        self.content_type = content_type
        self.status = 200
        self.headers: dict[str, str] = {}

    def get_request_header(self, _index: int, _name: str) -> str:
        return self.content_type

    def set_response_header(self, _index: int, name: str, value: str) -> None:
        self.headers[name] = value

    def set_response_content_type(self, _index: int, _name: str) -> None:
        pass

    def set_response_status(self, status: int, _said: str, _index: int) -> None:
        self.status = status


def verdicts_on(folder: Path, *pictures: NDArray[np.uint8]) -> list[Any]:
    """Return what the handler of an artifact's folder says of pictures, uint8 [H, W, 3], sent as PNG."""
    handler = Handler()
    handler.initialize(Context(folder))
    found = []
    for pixels in pictures:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        (answer,) = handler.handle([{"body": file.getvalue()}], Context(folder))
        found.append(json.loads(answer))
    return found
