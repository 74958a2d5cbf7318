"""Published settings of continual learners, each under one name, as options of the benchmark.

A preset is a set of options and of what no option says; what is given beside it counts. `differs` is how a
run then still is not the published one. presets.toml has them all: the command says it, and reads it there.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINEAR_ONLY = ("bic", "wa", "dytox")
"""learners whose method is of a linear head"""
CLOSED_FORM = ("lda", "ridge", "ranpac")
"""learners that solve a head over frozen features; each item comes once"""
_LEARNERS = "fine-tuning,joint,softmax-rehearsal,icarl,lucir,bic,wa,nscil,lrcil,foster,dytox"
HEADS = ("ber", "vos", "npos", "logit-norm", "t2f-norm", "augmix", "regmixup")
_SCORES = (
    "msp,odin,max_logit,gen,react,ash,scale,dice,she,rmd,gradnorm,klm,relation,nnguide,embedding_knn,"
    "forensic_knn,mahalanobis,fused,energy,pseudo,novelty,embedding_novelty,trace_novelty,discriminant,"
    "odin-published,nnguide-published,ber-published,vos-published,npos-published"
)
NAMES: Mapping[str, tuple[str, ...]] = {
    "rejection": (*_SCORES.split(","), *HEADS),
    "learner": (*_LEARNERS.split(","), *CLOSED_FORM),
    "scheme": ("bc", "mc", "mt:sumlog", "mt:sumlogit", "mt:sumfeat", "mt:max"),
    "distilled": ("all", "exemplars"),
    "exposure": ("none", "class", "outliers"),
    "head": ("linear", "cosine"),
}
"""what options may be; the tables of methods load torch, and a wrong name is told of before that"""


@dataclass(frozen=True)
class Preset:
    """The options of a published run."""

    options: Mapping[str, object]
    """by the fields of `deploy.cli.learning.Learning`"""
    source: str
    differs: tuple[Mapping[str, str], ...]
    """each a text, and the condition under which it holds"""


def _preset(groups: list[dict[str, Any]]) -> Preset:
    options = {name: value for group in groups for name, value in group.get("options", {}).items()}
    (source,) = (group["source"] for group in groups if "source" in group)
    return Preset(options, source, tuple(text for group in groups for text in group.get("differs", ())))


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PRESETS = {name: _preset([_FILE["groups"][of] for of in groups]) for name, groups in _FILE["presets"].items()}
_HOLDS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "no checkpoint": lambda chosen: chosen["checkpoint"] is None,
    "mixing heads": lambda chosen: any(
        of in chosen["rejection"] for of in ("ber", "vos", "npos", "regmixup")
    ),
    "heads": lambda chosen: any(name in chosen["rejection"] for name in HEADS),
    "queues": lambda chosen: any(name in chosen["rejection"] for name in ("vos", "npos")),
    "steps": lambda chosen: (chosen.get("base"), chosen.get("increment")) == (10, 10),
    "long sequence": lambda chosen: (
        chosen.get("sequence") not in (None, "easy", "hard") and chosen["epochs"] == 40
    ),
}


def differences(preset: Preset, chosen: Mapping[str, Any]) -> list[str]:
    """Return how a run of these options, by their names, is not the published one."""
    texts = [of["text"] for of in preset.differs if "when" not in of or _HOLDS[of["when"]](chosen)]
    changed = [name for name, value in preset.options.items() if chosen[name] != value]
    given = [f"--{of.replace('_', '-')} {chosen[of]}; there {preset.options[of]}" for of in changed]
    return [*(text.format(**chosen) for text in texts), *given]
