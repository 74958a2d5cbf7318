"""ForgeryNet's classes: what each numbered directory holds.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 3.2; the
numbers are those that the authors gave to users of the data. That videos have the names of pictures is
known of directories 1, 2, 4 and 8, and inferred for the others.
"""

from typing import Literal, NamedTuple

Kind = Literal["remained", "replaced"]
"""what becomes of the identity: classes 1 and 2 of three"""


class Approach(NamedTuple):
    """A way of forging; its directory is its class of sixteen."""

    name: str
    kind: Kind
    subtype: str
    in_videos: bool


APPROACHES: dict[int, Approach] = {
    1: Approach("FaceShifter", "replaced", "swap", True),
    2: Approach("FS-GAN", "replaced", "swap", True),
    3: Approach("DeepFakes", "replaced", "swap", True),
    4: Approach("BlendFace", "replaced", "transfer", True),
    5: Approach("MMReplacement", "replaced", "transfer", True),
    6: Approach("DeepFakes-StarGAN2-Stack", "replaced", "stacked", True),
    7: Approach("Talking-head Video", "remained", "reenactment", True),
    8: Approach("ATVG-Net", "remained", "reenactment", True),
    9: Approach("StarGAN2-BlendFace-Stack", "replaced", "stacked", False),
    10: Approach("First Order Motion", "remained", "reenactment", False),
    11: Approach("StyleGAN2", "remained", "editing", False),
    12: Approach("MaskGAN", "remained", "editing", False),
    13: Approach("StarGAN2", "remained", "editing", False),
    14: Approach("SC-FEGAN", "remained", "editing", False),
    15: Approach("DiscoFaceGAN", "remained", "editing", False),
}
REAL_SOURCES: dict[int, str] = {16: "RAVDESS", 17: "CREMA-D", 18: "AVSpeech", 19: "VoxCeleb2"}
FORGED_THROUGHOUT = (2, 8)
"""directories of which every frame of a video is forged: the lists give no segments, or no row at all"""


def classes_of(directory: int) -> tuple[int, int, int]:
    """Return the classes of two, of three and of sixteen that a directory stands for; 0 is real.

    Raises KeyError for a number that no directory has.
    """
    if directory in REAL_SOURCES:
        return 0, 0, 0
    return 1, 1 if APPROACHES[directory].kind == "remained" else 2, directory
