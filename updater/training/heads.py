"""Heads put in place of one another: the one that classifies need not be the one that was trained."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from detector.model.network import CosineHead, Network
from updater.training.step import Learnt

_PREFIX = "head."


def with_head(network: Network, state: Mapping[str, Tensor]) -> Network:
    """Return a copy of a network with another head, which is linear if it has a bias and cosine if not.

    state: weight, float32 [K, D]; bias, float32 [K], or the cosine head's scale, which where it is not
    given stays as in a new head.
    """
    result = copy.deepcopy(network)
    weight = state["weight"]
    with torch.random.fork_rng(devices=[]):
        head: nn.Module
        if "bias" in state:
            head = nn.Linear(weight.shape[1], weight.shape[0])
        else:
            head = CosineHead(weight.shape[1], weight.shape[0])
    head.load_state_dict({**head.state_dict(), **state})
    result.head = head.to(weight.device).train(network.training)
    kind = "linear" if "bias" in state else "cosine"
    result.architecture = network.architecture.model_copy(update={"head": kind})
    return result


def keep_head(network: Network) -> dict[str, Tensor]:
    """Return a head's tensors for `Learnt.kept`."""
    return {_PREFIX + name: value.detach().clone() for name, value in network.head.state_dict().items()}


def trained(learnt: Learnt) -> Network:
    """Return the network with the head that was trained: its own, unless another one was kept."""
    kept = {k.removeprefix(_PREFIX): v for k, v in learnt.kept.items() if k.startswith(_PREFIX)}
    return with_head(learnt.network, kept).eval() if kept else learnt.network
