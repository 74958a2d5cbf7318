"""The names of networks, known without loading torch or timm, which takes seconds."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ELA, HIGHPASS, GRAM = "ela", "highpass", "gram"
FRONT_ENDS = (ELA, HIGHPASS, GRAM)
"""NAME:BACKBONE; without a backbone the paper's, Xception"""
HRNET, REGRESSION, DECODERS = "hrnet_w48", "regression", ("unet", "fpn")
XCEPTION, F3NET = "legacy_xception", "f3net"
OF_FRAMES = ("frames", "tsn", "lstm")
"""on any model of timm's: NAME:BACKBONE, or NAME:highpass:BACKBONE"""
TORCHVISION = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s")
FORGERYNETS = ("x3d_m", "slowfast_r50", "slow_r50", "tsm_r50", *TORCHVISION, "frames")
WITHOUT_WEIGHTS = ("san19_patchwise", "bn_inception", "resnet32_cifar")
DEEPERFORENSICS = ("c3d", "i3d", "lstm", "tsn")
"""of its paper, beside Xception on frames"""


class NetworkError(ValueError):
    """An unknown network. One line: which, and the known ones."""


@cache
def _source() -> str:
    folder = Path(str(find_spec("timm").origin)).parent  # type: ignore[union-attr]  # it is installed
    own = Path(__file__).with_name("backbones.py")
    return "\n".join(path.read_text() for path in (*sorted(folder.glob("models/*.py")), own))


def check_backbone(name: str, more: str = "", option: str = "--model") -> None:
    """Raise NetworkError unless timm's source or our own has a model, and weights, of that name.

    more: other choices.
    """
    model, _, tag = name.partition(".")
    if not model or not re.search(rf"(?:def |['\"]){re.escape(model)}(?:\(|['\"])", _source()):
        near = get_close_matches(model, re.findall(r"@register_model\s+def (\w+)", _source()), 3)
        raise NetworkError(
            f"{option} {name} is no model that timm knows: {' or '.join(near) or 'see its list'}{more}"
        )
    tags = re.findall(rf"['\"]{re.escape(model)}\.(\w+)['\"]", _source())
    if tag and tags and tag not in tags:
        raise NetworkError(f"{option} {name}: timm has no such weights: {' or '.join(sorted({*tags}))}{more}")


def check_image(name: str) -> None:
    """Raise NetworkError for a name that is none. A front end and its backbone are both looked at."""
    if name == F3NET:
        return
    front, backbone = parts_of(name)
    known = ", ".join((F3NET, *(f"{kind}:BACKBONE" for kind in FRONT_ENDS)))
    if front and front not in FRONT_ENDS:
        raise NetworkError(f"--model {name} looks at no pictures: choose of {known}, or any model of timm's")
    check_backbone(backbone, f"; or {known}")


def check_maps(name: str) -> None:
    kind, _, backbone = name.partition(":")
    if name != HRNET and not (backbone and kind in (REGRESSION, *DECODERS)):
        known = ", ".join(f"{kind}:BACKBONE" for kind in (REGRESSION, *DECODERS))
        raise NetworkError(f"--model {name} draws no maps: choose of {known} (any model of timm's), {HRNET}")
    check_backbone(backbone or HRNET)


def check_video(name: str, offered: Sequence[str] = (*FORGERYNETS, *DEEPERFORENSICS)) -> None:
    kind, _, backbone = name.partition(":")
    if kind not in offered or (kind in OF_FRAMES) != bool(backbone):
        ways = ", ".join(f"{kind}:BACKBONE" if kind in OF_FRAMES else kind for kind in offered)
        raise NetworkError(f"--model {name} looks at no videos: choose of {ways} (any model of timm's)")
    if backbone:
        check_backbone(backbone.removeprefix(f"{HIGHPASS}:"))


def parts_of(name: str) -> tuple[str, str]:
    """Return front end and backbone of a network on pictures; the first is empty where there is none."""
    front, colon, backbone = name.partition(":")
    if not colon and front in FRONT_ENDS:
        return front, XCEPTION
    return (front, backbone) if colon else ("", front)
