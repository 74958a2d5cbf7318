"""The features alone as an ONNX graph: the memory and deploy compute them without torch.

Of crops of the usual side the graph lies beside this module, without the texture features' weights, since no
process without torch could make it; `python -m detector.model.feature_graph` writes it anew. Of others torch
makes it, where it is installed.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from detector.features.texture_weights import fill_weights, strip_weights
from detector.release.manifest import FEATURE_VERSION
from ingest.records import CropPlan

STORED_PX = CropPlan().crop_px


def feature_graph(crop_px: int) -> bytes:
    """Return ONNX: crops uint8 RGB (n, S, S, 3) → features float32 (n, WIDTH), for S = crop_px.

    Raises ValueError for a side that has no features: no multiple of 8, less than 32, or not the usual one
    where torch is not installed.
    """
    if crop_px == STORED_PX:
        return fill_weights(stored_graph_path().read_bytes())
    try:
        return make(crop_px)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"features of crops of {crop_px} px need {error.name}, which is not installed; those of "
            f"{STORED_PX} px do not"
        ) from error


def stored_graph_path() -> Path:
    return Path(__file__).with_name(f"features-{FEATURE_VERSION}-{STORED_PX}.onnx")


def make(crop_px: int) -> bytes:
    """Export the graph from `CropFeatures`. Raises ValueError as there, and ModuleNotFoundError."""
    from torch import Tensor, nn

    from detector.features.texture import CropFeatures
    from detector.model.export import write_onnx
    from detector.release.tensors import ROWS, TensorSpec

    class OfCrops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = CropFeatures(crop_px)

        def forward(self, crops: Tensor) -> dict[str, Tensor]:
            return {"features": self.features(crops.permute(0, 3, 1, 2).float())}

    crops = TensorSpec(name="crops", dtype="uint8", shape=(ROWS, crop_px, crop_px, 3))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "features.onnx"
        write_onnx(OfCrops(), [crops], path)
        return path.read_bytes()


if __name__ == "__main__":
    stored_graph_path().write_bytes(strip_weights(make(STORED_PX)))
    sys.stderr.write(f"{stored_graph_path()}\n")
