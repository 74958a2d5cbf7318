"""Fine-tuning: the previous network goes on learning from the new classes alone. The lower bound.

No exemplars, no distillation: items of old classes are left out, unless there are no others. Heeds the
scheme and the exposure.
"""

from dataclasses import replace

from updater.training import two_stages
from updater.training.losses import classification
from updater.training.step import Learnt, Step


def learn(step: Step) -> Learnt:
    """Train a network on the new classes of a step; the logits of old ones stay, and fade."""
    new = [i for i, family in enumerate(step.train.families) if family not in step.old]
    if new:
        step = replace(step, train=step.train.take(new))
    trained = two_stages.train(step, "fine-tuning", lambda network, data: classification(step, data))
    return Learnt(trained.network, step.classes)
