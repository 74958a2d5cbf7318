import math

import torch

from updater.training.precision import half_precision, loss_scale, unscale


def test_a_processor_trains_in_full_precision():
    cpu = torch.device("cpu")
    assert loss_scale(cpu) == 1
    with half_precision(cpu):
        assert torch.nn.functional.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype == torch.float32


def test_gradients_come_back_to_their_size():
    gradients = [torch.tensor([4096.0, -8192.0]), torch.tensor([0.0])]
    assert unscale(gradients, 4096.0)
    assert [one.tolist() for one in gradients] == [[1, -2], [0]]


def test_gradients_that_overflowed_are_told():
    for bad in (math.inf, math.nan):
        assert not unscale([torch.tensor([1.0]), torch.tensor([bad])], 2.0)
