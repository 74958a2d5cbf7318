"""The bounds of continual learning: fine-tuning, the lower one, and joint training, the upper one.

Both heed the scheme and the exposure. Neither has exemplars or distillation.
"""

from dataclasses import replace

from updater.training import two_stages
from updater.training.losses import classification
from updater.training.step import Learnt, Step


def fine_tune(step: Step) -> Learnt:
    """Train the previous network on the new classes of a step; the logits of old ones stay, and fade.

    Items of old classes are left out, unless there are no others.
    """
    new = [i for i, family in enumerate(step.train.families) if family not in step.old]
    if new:
        step = replace(step, train=step.train.take(new))
    trained = two_stages.train(step, "fine-tuning", lambda network, data: classification(step, data))
    return Learnt(trained.network, step.classes)


def learn_jointly(step: Step) -> Learnt:
    """Train a network from scratch on a step's items.

    Raises ValueError where a class has none of them: it would be a logit that nothing trained.
    """
    step = replace(step, previous=None)
    trained = two_stages.train(step, "joint", lambda network, data: classification(step, data))
    return Learnt(trained.network, step.classes)
