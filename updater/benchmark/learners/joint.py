"""Joint training: a new network on everything at once. The upper bound of continual learning.

Whoever calls gives the items of all steps so far; the previous network is not used. Heeds the scheme and
the exposure.
"""

from dataclasses import replace

from updater.training import two_stages
from updater.training.losses import classification
from updater.training.step import Learnt, Step


def learn(step: Step) -> Learnt:
    """Train a network from scratch on a step's items.

    Raises ValueError where a class has none of them: it would be a logit that nothing trained.
    """
    step = replace(step, previous=None)
    trained = two_stages.train(step, "joint", lambda network, data: classification(step, data))
    return Learnt(trained.network, step.classes)
