"""Every learner by its name on the command line. To add one is to add its file and its line here.

Each is the published method, in the form of its authors' code where that differs from the paper.
"""

from updater.benchmark.learners import bic, bounds, dytox, foster, icarl, lrcil, lucir, nscil, wa
from updater.training import two_stages
from updater.training.step import Learner

LEARNERS: dict[str, Learner] = {
    "fine-tuning": bounds.fine_tune,
    "joint": bounds.learn_jointly,
    "softmax-rehearsal": two_stages.learn,
    "icarl": icarl.learn,
    "lucir": lucir.learn,
    "bic": bic.learn,
    "wa": wa.learn,
    "nscil": nscil.learn,
    "lrcil": lrcil.learn,
    "foster": foster.learn,
    "dytox": dytox.learn,
}
