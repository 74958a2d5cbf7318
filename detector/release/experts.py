"""The declarations of experts: networks with a real/fake head of their own, which a release may carry.

An expert is one ONNX graph with its preprocessing inside: pictures in, one logit out. It lies inside of the
detector's graph, so that a release that carries experts is asked and answers like any other.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from detector.release.contract import PICTURE
from detector.release.tensors import CROPS, ROWS, GraphContract, ModelOutput, Request, Run, TensorSpec

PICTURES, LOGIT = "pictures", "logit"
_ROWS_A_RUN = 8
"""as many as the detector's graph looks at in one run"""


class ExpertContract(GraphContract):
    """An expert's inputs and outputs, its author and its licence.

    pictures: uint8 (rows, S, S, 3), RGB: a release's own native crops, or whole pictures resized to that
    square; logit: float32 (rows), positive means fake. No row changes another's logit.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,29}$")
    input: Literal["crop", "resize"] = Field(description="native crops, or the whole picture, resized")
    side_px: int = Field(gt=0, le=1024, description="S")
    digest: str = Field(description="SHA-256 of its ONNX file")
    checkpoint: str = Field(description="whose its weights are, one line")
    licence: str = Field(min_length=1, description="that its weights may be used under")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name=PICTURES, dtype="uint8", shape=(ROWS, self.side_px, self.side_px, 3)),)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name=LOGIT, dtype="float32", shape=(ROWS,)),)

    @property
    def view(self) -> str:
        """The detector's input that it looks at."""
        return CROPS if self.input == "crop" else PICTURE

    @property
    def score(self) -> str:
        """The name of its term in the gate, and of its output of the detector's graph."""
        return f"expert_{self.name}"

    @property
    def raw(self) -> TensorSpec:
        """Its logits of each crop or picture, as the detector's graph reads them before it has the expert."""
        axis = CROPS if self.input == "crop" else "pictures"
        return TensorSpec(name=f"logit_{self.name}", dtype="float32", shape=(axis,))

    def run_graph(self, run: Run, request: Request) -> ModelOutput:
        """Score a few pictures a run."""
        pictures = request[PICTURES]
        parts = np.split(pictures, range(_ROWS_A_RUN, len(pictures), _ROWS_A_RUN))
        return {LOGIT: np.concatenate([run([LOGIT], {PICTURES: part})[0] for part in parts])}


class CarriedExpert(ExpertContract):
    """An expert of a release, with its logit's weight, an item's being the mean of its crops'.

    Its term of the gate reads z = (logit - median) / scale, over held-back reals. Each forgery's logit is
    raised by slope * logit + offset: its log odds by Platt's scaling, times its share beside the network.
    """

    median: float = Field(description="the mean over sources of their reals' medians")
    scale: float = Field(gt=0, description="84 % quantile of reals' logits over their source's median")
    reals: int = Field(gt=0, description="that this was measured on")
    sources: int = Field(gt=0, description="that they are of")
    slope: float = Field(0.0, ge=0, description="nats a logit; 0: it knows nothing of known forgeries")
    offset: float = Field(0.0, description="nats")

    @property
    def description(self) -> str:
        """One line for a person."""
        vote = f"votes with {self.slope:.2g} nats a logit" if self.slope else "has no vote"
        return f"{self.name}: {self.checkpoint}, licence {self.licence}, {vote}"
