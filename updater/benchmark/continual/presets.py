"""Published settings of continual learners, each under one name, as options of the benchmark.

A preset is a set of options and of what no option says; what is given beside it counts. `differs` is how a
run then still is not the published one. presets.toml has them all: the command says it, and reads it there.
"""

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from updater.benchmark.networks.names import check_backbone
from updater.distortions.distortion import DistortionError
from updater.settings import TIMM

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES: Mapping[str, tuple[str, ...]] = {option: tuple(of.split()) for option, of in _FILE["names"].items()}
"""what options may be; the tables of methods load torch, and a wrong name is told of before that"""
_NUMBERS: Mapping[str, tuple[Callable[[str], float], float, float, str]] = {
    **dict.fromkeys(("width", "batch"), (int, 1, math.inf, "a whole number of 1 or more")),
    **dict.fromkeys(("weight_decay", "mixup", "head_epochs"), (float, 0, math.inf, "a number of 0 or more")),
    **dict.fromkeys(("label_smoothing", "calibration_share"), (float, 0, 1, "a share from 0 to below 1")),
}
SETTINGS = ("optimizer", "schedule", "augment", "distortions", *_NUMBERS)
"""what --set sets"""
BLUR_JPEG = "blur-jpeg"
"""of --set distortions, beside TYPE:LEVEL"""
LINEAR_ONLY, CLOSED_FORM = (tuple(_FILE[of].split()) for of in ("linear_only", "closed_form"))
"""learners whose method is of a linear head; those that solve one over frozen features, where each item comes
once"""


@dataclass(frozen=True)
class Preset:
    """The options of a published run."""

    options: Mapping[str, object]
    """by the fields of `deploy.cli.learning.Learning`"""
    source: str
    differs: tuple[Mapping[str, Any], ...]
    """each a text, and patterns by option, all of which must match it"""


def _preset(groups: list[dict[str, Any]]) -> Preset:
    options = {name: value for group in groups for name, value in group.get("options", {}).items()}
    (source,) = (group["source"] for group in groups if "source" in group)
    return Preset(options, source, tuple(text for group in groups for text in group.get("differs", ())))


PRESETS = {name: _preset([_FILE["groups"][of] for of in groups]) for name, groups in _FILE["presets"].items()}


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the options that NAME=VALUE texts set. Raises ValueError."""
    chosen: dict[str, Any] = {}
    for name, _, value in (text.partition("=") for text in texts):
        if name not in SETTINGS:
            raise ValueError(f"--set {name!r} is not known: choose of {', '.join(SETTINGS)}")
        chosen[name] = value
        if name in _NUMBERS:
            number_of, least, bound, wanted = _NUMBERS[name]
            with suppress(ValueError):
                chosen[name] = number_of(value)
            if chosen[name] == value or not least <= chosen[name] < bound:
                raise ValueError(f"--set {name}={value}: it has to be {wanted}")
    return chosen


def scheme_of(text: str) -> tuple[str, str, float]:
    """Return the scheme, its aggregate and its share of the binary loss, from SCHEME[:SUM[:LAMBDA]].

    Raises ValueError for a share that is none: CDDB's table 8 has .1 to .9.
    """
    scheme, aggregate, share, *more = [*text.split(":"), "", ""]
    value = math.nan
    with suppress(ValueError):
        value = float(share or 0.3)
    if any(more) or not 0 < value < 1 or (share and scheme != "mt"):
        raise ValueError(f"--scheme {text}: mt:SUM:LAMBDA has a lambda between 0 and 1, others have none")
    return scheme, aggregate or "sumlogit", value


def rates(text: str | None) -> tuple[float, float] | None:
    """Return the rates of the first task and of later ones, from RATE or FIRST,LATER. Raises ValueError."""
    if text is None:
        return None
    values: list[float] = []
    with suppress(ValueError):
        values = [float(part) for part in text.split(",")]
    if len(values) not in (1, 2) or not all(math.isfinite(rate) and rate > 0 for rate in values):
        raise ValueError(f"--rate {text}: it has to be a number above 0, or two as FIRST,LATER")
    return values[0], values[-1]


def check(chosen: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that is none, and for options that do not go together; loads no torch.

    chosen: by the fields of `deploy.cli.learning.Learning`.
    """
    scheme, aggregate, _ = scheme_of(chosen["scheme"])
    names = {**chosen, "scheme": f"{scheme}:{aggregate}" if ":" in chosen["scheme"] else scheme}
    for option, known in NAMES.items():
        for name in map(str.strip, str(names[option]).split(",")):
            if name not in known:
                raise ValueError(f"{_flag(option)}{name!r} is not known: choose of {', '.join(known)}")
    bare, preset, learner = chosen["backbone"] in (None, "none"), chosen["preset"], chosen["learner"]
    epochs, forensic, linear = chosen["epochs"], chosen["forensic"], chosen["head"] == "linear"
    refused = {
        "bare": bare and preset,
        "closed_form": learner in CLOSED_FORM and not (bare and linear and forensic and scheme == "mc"),
        "forensic": bare and not forensic,
        "dytox": bare and learner.startswith("dytox"),
        "linear": not linear and learner in LINEAR_ONLY,
        "crop_px": chosen["crop_px"] % 8,
        "epochs": epochs is not None and not 0 <= epochs < math.inf,
        "as_it_is": epochs == 0 and ((scheme, learner) != ("bc", "fine-tuning") or not chosen["checkpoint"]),
        "leave_out": chosen["leave_out"] and chosen["calibration_share"] == 0,
        "device": not re.fullmatch(r"auto|cpu|cuda(:\d+)?", chosen["device"]),
        "checkpoint": chosen["checkpoint"] not in (None, TIMM) and not chosen["checkpoint"].is_file(),
    }
    if problems := [_FILE["refused"][name] for name, holds in refused.items() if holds]:
        raise ValueError(problems[0].format(**chosen))
    rates(chosen["rate"])
    if not bare:
        check_backbone(chosen["backbone"], ", or none", "--backbone")
    if chosen["distortions"]:
        # They take seconds to import.
        from updater.distortions.methods import step

        for name, _, level in (t.partition(":") for t in chosen["distortions"].split(",") if t != BLUR_JPEG):
            try:
                step(name, int(level) if level.isdecimal() else 0)
            except DistortionError as error:
                raise ValueError(f"--set distortions={BLUR_JPEG} or TYPE:LEVEL: {error}") from error


def differences(preset: Preset, chosen: Mapping[str, Any]) -> list[str]:
    """Return how a run of these options, by their names, is not the published one."""
    texts = [
        of["text"]
        for of in preset.differs
        if all(re.search(pattern, str(chosen.get(name))) for name, pattern in of.get("when", {}).items())
    ]

    changed = {name: value for name, value in preset.options.items() if chosen[name] != value}
    given = [f"{_flag(of)}{chosen[of]}; there {value}" for of, value in changed.items()]
    return [*(text.format(**chosen) for text in texts), *given]


def _flag(option: str) -> str:
    return f"--set {option}=" if option in SETTINGS else f"--{option.replace('_', '-')} "
