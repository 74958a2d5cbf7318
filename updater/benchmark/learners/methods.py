"""Every learner by its name on the command line. To add one is to add its file and its line here.

Each is the published method, in the form of its authors' code where that differs from the paper. The bounds
of continual learning, fine-tuning and joint training, stand here: they heed the scheme and the exposure, and
have no exemplars and no distillation. "dytox-joint" is one task of all classes for DyTox's network.
"""

from dataclasses import replace

from updater.benchmark.learners import bias_correction, ccil, dytox, foster, icarl, lrcil, lucir, nscil, ridge
from updater.training import discriminant, two_stages
from updater.training.losses import classification
from updater.training.step import Learner, Step, TrainedModel


def fine_tune(step: Step) -> TrainedModel:
    """Train the previous network on the new classes of a step; the logits of old ones stay, and fade.

    Items of old classes are left out, unless there are no others.
    """
    new = [i for i, family in enumerate(step.train.families) if family not in step.old]
    if new:
        step = replace(step, train=step.train.take(new))
    trained = two_stages.train(step, "fine-tuning", lambda network, data: classification(step, data))
    return TrainedModel(trained.network, step.classes)


def learn_jointly(step: Step) -> TrainedModel:
    """Train a network from scratch on a step's items.

    Raises ValueError where a class has none of them: it would be a logit that nothing trained.
    """
    step = replace(step, previous=None)
    if step.architecture.frozen:
        return discriminant.learn(step)
    trained = two_stages.train(step, "joint", lambda network, data: classification(step, data))
    return TrainedModel(trained.network, step.classes)


LEARNERS: dict[str, Learner] = {
    "fine-tuning": fine_tune,
    "joint": learn_jointly,
    "softmax-rehearsal": two_stages.learn,
    "lda": discriminant.learn,
    "ridge": ridge.learn_ridge,
    "ranpac": ridge.learn_ranpac,
    "icarl": icarl.learn,
    "lucir": lucir.learn,
    "bic": bias_correction.learn_bic,
    "wa": bias_correction.learn_wa,
    "nscil": nscil.learn,
    "lrcil": lrcil.learn,
    "foster": foster.learn,
    "dytox": dytox.learn,
    "dytox-joint": lambda step: dytox.learn(replace(step, previous=None)),
    "ccil": ccil.learn,
}
