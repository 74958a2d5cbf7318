"""Published settings of continual learners, each under one name, as options of the benchmark.

A preset is a set of options and of what no option says; what is given beside it counts. `differs` is how a
run then still is not the published one.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """The options of a published run."""

    options: Mapping[str, object]
    """by the fields of `deploy.cli.learning.Learning`"""
    source: str
    differs: tuple[str, ...]


_TRAINING = (
    "native crops of 224 px, several an image; there the image is resized to 256 px and cropped to 224",
    "AdamW, weight decay 0.02, a rate that rises and falls; there Adam and a rate that falls twice",
    "items are drawn with replacement and small classes oftener, and labels are smoothed; there they are not",
    "the backbone begins at random unless --pretrained or --checkpoint is given; there it was trained before",
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
_OPENCIL_TRAINING = (
    "items are drawn with replacement and small classes oftener, and labels are smoothed; there they are not",
    "a linear layer, a norm and a GELU stand between the pooled features and the head; there nothing does",
    "the first step is trained for as long as later ones; there for 200 epochs, with a weight decay of 5e-4",
)
_LIKE_CIFAR = "brightness is not changed at random; there it is, by a quarter"
_LIKE_IMAGENET = "native crops of 224 px, several an image; there one of random size, resized"
_OPENCIL_PAPER = "Miao et al. 2024 (OpenCIL), section 4.1, and its published code"
_PAPER = "Li et al. 2023 (CDDB), sections 4 and 5, appendix A.2, and its published code"


def _opencil(learner: str, *differs: str, **options: object) -> dict[str, Preset]:
    """On CIFAR-100 and on ImageNet: what differs is only the network, the input and the memory."""
    both = {**_OPENCIL, "learner": learner, **options}
    common = (*_OPENCIL_TRAINING, *differs)
    return {
        f"opencil-{learner}": Preset({**both, **_SMALL}, _OPENCIL_PAPER, (*common, _LIKE_CIFAR)),
        f"opencil-imagenet-{learner}": Preset(
            both, _OPENCIL_PAPER, (*common, _LIKE_IMAGENET, "give the steps by --base and --increment")
        ),
    }


PRESETS: dict[str, Preset] = {
    "cddb-lucir": Preset(
        {**_CDDB, "learner": "lucir", "epochs": 40.0, "rate": "1e-4"},
        _PAPER,
        (*_RESNET, "40 epochs, as on EASY and HARD; on LONG it has 50"),
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
    **_opencil("icarl", "the rate falls three times; there at 80 and 120 epochs"),
    **_opencil("bic", "two numbers are fitted until they stand still; there for 170 epochs"),
    **_opencil("wa"),
    **_opencil(
        "foster",
        "compression is as long as boosting; there it has 130 epochs",
        schedule="cosine",
        weight_decay=5e-4,
    ),
}
