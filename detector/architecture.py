"""What a network is made of. No torch here: whoever only serves a release reads it too."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FEATURE_VERSION = "1"
"""Of the forensic features: raise it with every change after which old rows mean something else."""


class Architecture(BaseModel):
    """Everything that a network's shape follows from, its classes aside. It is in the manifest."""

    model_config = ConfigDict(frozen=True)

    backbone: str = Field("lcnet_050", description="a timm model's name")
    crop_px: int = Field(128, description="side of a crop in pixels")
    forensic: bool = Field(
        True, description="residual front end and forensic branch; without, the backbone sees plain RGB"
    )
    width: int = Field(
        64, gt=0, description="of the backbone's part of the embedding, and of the forensic part"
    )
    head: Literal["linear", "cosine"] = Field(
        "linear", description="linear, or cosines times a learnt scale (CDDB's LinFC and CosFC)"
    )
    dropout: float = Field(0.1, ge=0, lt=1)
