"""Published settings of continual learners, each under one name, as options of the benchmark.

A preset is a set of options and of what no option says; what is given beside it counts. `differs` is how a
run then still is not the published one: the command says it, and this is the one place that has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """The options of a published run."""

    options: Mapping[str, object]
    """by the fields of `deploy.cli.learning.Learning`"""
    source: str
    differs: tuple[str, ...]


LINEAR_ONLY = ("bic", "wa", "dytox")
"""learners whose method is of a linear head"""
_LEARNERS = "fine-tuning,joint,softmax-rehearsal,lda,icarl,lucir,bic,wa,nscil,lrcil,foster,dytox"
HEADS = ("ber", "vos", "npos", "logit-norm", "t2f-norm", "augmix", "regmixup")
_SCORES = (
    "msp,odin,max_logit,gen,react,klm,relation,nnguide,embedding_knn,forensic_knn,mahalanobis,fused,energy,"
    "pseudo,novelty,embedding_novelty,trace_novelty,discriminant,odin-published,ber-published,vos-published,"
    "npos-published"
)
NAMES: Mapping[str, tuple[str, ...]] = {
    "rejection": (*_SCORES.split(","), *HEADS),
    "learner": tuple(_LEARNERS.split(",")),
    "scheme": ("bc", "mc", "mt:sumlog", "mt:sumlogit", "mt:sumfeat", "mt:max"),
    "distilled": ("all", "exemplars"),
    "exposure": ("none", "class", "outliers"),
    "head": ("linear", "cosine"),
}
"""what options may be; the tables of methods load torch, and a wrong name is told of before that"""
_RANDOM_START = "the backbone begins at random unless --checkpoint is given; there it was trained before"
_TRAINING = (
    "native crops of {crop_px} px, several an image; there the image is resized to 256 px and cropped to 224",
    "AdamW, weight decay 0.02, a rate that rises and falls; there Adam and a rate that falls twice",
    "items are drawn with replacement and small classes oftener, and labels are smoothed; there they are not",
    _RANDOM_START,
)
_RESNET = (
    *_TRAINING,
    "a linear layer, a norm and a GELU stand between the pooled features and the head; there nothing does",
)
_CDDB: Mapping[str, object] = {
    "scheme": "mt:sumlogit",
    "head": "linear",
    "backbone": "resnet50",
    "forensic": False,
    "width": 2048,
    "crop_px": 224,
    "augment": "flip",
    "memory": 1500,
    "batch": 32,
    "exposure": "none",
    "head_epochs": 0.0,
    "calibration_share": 0.0,
    "leave_out": False,
}
_OPENCIL: Mapping[str, object] = {
    "scheme": "mc",
    "head": "linear",
    "forensic": False,
    "width": 512,
    "crop_px": 224,
    "augment": "flip",
    "memory": 20_000,
    "batch": 128,
    "optimizer": "sgd",
    "schedule": "tenths",
    "weight_decay": 2e-4,
    "rate": "0.1",
    "epochs": 170.0,
    "head_epochs": 0.0,
    "exposure": "none",
    "calibration_share": 0.0,
    "leave_out": False,
    "backbone": "resnet18",
    "rejection": "energy,msp,odin-published,max_logit,gen,react,klm,relation,nnguide,"
    "logit-norm,t2f-norm,augmix,regmixup,vos-published,npos-published,ber-published",
}
_SMALL: Mapping[str, object] = {
    "backbone": "resnet32_cifar",
    "crop_px": 32,
    "width": 64,
    "augment": "flip-shift",
    "memory": 2000,
}
_MIXED = "BER, VOS, NPOS and RegMixup mix embeddings; there pictures are mixed, old exemplars among them"
_QUEUES = "VOS and NPOS draw from all items of new classes; there from queues of 1,000 that must fill first"
_HEADS = (
    "rejection heads train for 300 steps, gradients clipped to a length of 5; there ten epochs, not clipped"
)
_OPENCIL_TRAINING = (
    "items are drawn with replacement and small classes oftener, and labels are smoothed; there they are not",
    "a linear layer, a norm and a GELU stand between the pooled features and the head; there nothing does",
    *(_MIXED, _HEADS, _QUEUES),
)
_OPENCIL_FIRST = (
    "the first step is trained for as long as later ones; there for 200 epochs, with a weight decay of 5e-4"
)
_STEPS = "give the steps by --base and --increment"
_LONG = "40 epochs, as on EASY and HARD; on LONG it has 50"
_LIKE_CIFAR = "brightness is not changed at random; there it is, by a quarter"
_LIKE_IMAGENET = "native crops of {crop_px} px, several an image; there one of random size, resized"
_OPENCIL_PAPER = "Miao et al. 2024 (OpenCIL), section 4.1, and its published code"
_PAPER = "Li et al. 2023 (CDDB), sections 4 and 5, appendix A.2, and its published code"


_APPLIES: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    _RANDOM_START: lambda chosen: chosen["checkpoint"] is None,
    _MIXED: lambda chosen: _scores(chosen, "ber", "vos", "npos", "regmixup"),
    _HEADS: lambda chosen: _scores(chosen, *HEADS),
    _QUEUES: lambda chosen: _scores(chosen, "vos", "npos"),
    _STEPS: lambda chosen: (chosen["base"], chosen["increment"]) == (10, 10),
    _LONG: lambda chosen: chosen["sequence"] not in ("easy", "hard") and chosen["epochs"] == 40,
}
"""differences that follow from an option; any other there is whatever is chosen"""


def _scores(chosen: Mapping[str, Any], *named: str) -> bool:
    return any(name.strip().removesuffix("-published") in named for name in chosen["rejection"].split(","))


def differences(preset: Preset, chosen: Mapping[str, Any]) -> list[str]:
    """Return how a run of these options, by their names, is not the published one."""
    texts = [text for text in preset.differs if text not in _APPLIES or _APPLIES[text](chosen)]
    given = [
        f"--{name.replace('_', '-')} {chosen[name]}; there {value}"
        for name, value in preset.options.items()
        if chosen[name] != value
    ]
    return [*(text.format(**chosen) for text in texts), *given]


def _opencil(name: str, *differs: str, **options: object) -> dict[str, Preset]:
    """On CIFAR-100 and on ImageNet: what differs is only the network, the input and the memory."""
    both = {**_OPENCIL, "learner": name, **options}
    common = (*_OPENCIL_TRAINING, *differs)
    return {
        f"opencil-{name}": Preset({**both, **_SMALL}, _OPENCIL_PAPER, (*common, _LIKE_CIFAR)),
        f"opencil-imagenet-{name}": Preset(both, _OPENCIL_PAPER, (*common, _LIKE_IMAGENET, _STEPS)),
    }


PRESETS: dict[str, Preset] = {
    "cddb-lucir": Preset(
        {**_CDDB, "learner": "lucir", "epochs": 40.0, "rate": "1e-4"},
        _PAPER,
        (*_RESNET, _LONG),
    ),
    "cddb-icarl": Preset(
        {**_CDDB, "learner": "icarl", "epochs": 30.0, "rate": "1e-4"},
        _PAPER,
        (*_RESNET, "the losses are sums over logits, as in iCaRL's paper; CDDB's code takes their mean"),
    ),
    "cddb-lrcil": Preset(
        {**_CDDB, "learner": "lrcil", "distillation": 0.0, "epochs": 20.0, "rate": "1e-3,1e-4"},
        _PAPER,
        (*_RESNET, "the latent layer is the pooled one; there it is the second stage of the backbone"),
    ),
    "cddb-nscil": Preset(
        {**_CDDB, "learner": "nscil", "scheme": "mc", "epochs": 12.0, "rate": "1e-3,1e-4"},
        _PAPER,
        (
            *_RESNET,
            "batch normalisation is fixed after the first task; there it goes on learning at 5e-5",
            "the null space is that of the paper's factor 10; CDDB tuned it to 100 and 1",
        ),
    ),
    "cddb-dytox": Preset(
        {
            **_CDDB,
            "learner": "dytox",
            "backbone": "convit_base",
            "width": 768,
            "epochs": 50.0,
            # 1e-4 and 5e-4 for 512 images.
            "rate": "6.25e-6,3.125e-5",
        },
        _PAPER,
        (
            *_TRAINING,
            "there is no balanced stage; there it has 20 epochs at a rate of 3e-6",
            "the auxiliary classifier reads the newest task's normed embedding, without a norm of its own",
        ),
    ),
    # Its code has softmax in place of iCaRL's sigmoids: cross-entropy plus distillation at T = 2, of which
    # ours is T^2 times as much. Its scores read the trained head, not the class means.
    **_opencil(
        "icarl",
        _OPENCIL_FIRST,
        "the rate falls three times; there at 80 and 120 epochs",
        "the nearest class mean is not measured beside the trained head; there it is",
        learner="softmax-rehearsal",
        distillation=0.25,
    ),
    **_opencil(
        "bic",
        "alpha and beta are fitted by L-BFGS until they stand still, with a faint pull to 1 and 0; there by "
        "SGD for 170 epochs, with a weight decay of 2e-4",
        "they minimise the cross-entropy of the logits; there that of their softmax, as if it were logits",
        "they are folded into the head, on which later steps train; there each step's correction is kept "
        "beside it, and only the newest is fitted",
        "what they are fitted on is held out by groups of near-duplicates; there by items",
    ),
    **_opencil(
        "wa",
        _OPENCIL_FIRST,
        "biases of new classes are scaled with their weights; there only the weights are",
    ),
    **_opencil(
        "foster",
        _OPENCIL_FIRST,
        "compression is as long as boosting; there it has 130 epochs",
        "the old head stays fixed and new classes read the new features alone; there (oofc: ft) one head on "
        "both is trained, from the old one's weights",
        "compression's loss is multiplied by T^2 = 4 and its weights decay; there neither",
        "scores read the compressed network; there the boosted one",
        schedule="cosine",
        weight_decay=5e-4,
    ),
}
