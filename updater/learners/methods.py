"""Every learner by its name on the command line. To add one is to add its file and its line here."""

from updater.learners import (
    bic,
    dytox,
    fine_tuning,
    foster,
    icarl,
    joint,
    lrcil,
    lucir,
    nscil,
    softmax_rehearsal,
    wa,
)
from updater.training.step import Learner

LEARNERS: dict[str, Learner] = {
    "fine-tuning": fine_tuning.learn,
    "joint": joint.learn,
    "softmax-rehearsal": softmax_rehearsal.learn,
    "icarl": icarl.learn,
    "lucir": lucir.learn,
    "bic": bic.learn,
    "wa": wa.learn,
    "nscil": nscil.learn,
    "lrcil": lrcil.learn,
    "foster": foster.learn,
    "dytox": dytox.learn,
}
