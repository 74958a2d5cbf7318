"""Every learner by its name on the command line. To add one is to add its file and its line here."""

from updater.learners import softmax_rehearsal
from updater.learners.step import Learner

LEARNERS: dict[str, Learner] = {
    "softmax-rehearsal": softmax_rehearsal.learn,
}
