import math

import pytest
import torch

from updater.training.precision import half_precision, loss_scale, one_thread, seed_draws, unscale


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


CPU = torch.device("cpu")


def test_draws_are_those_that_torch_seeds():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**40 + 7)
        wanted = torch.rand(5)
        torch.rand(3)
        seed_draws(2**40 + 7, CPU)
        assert torch.equal(torch.rand(5), wanted)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def fail_in_one_thread():
    with one_thread(CPU):
        assert torch.get_num_threads() == 1
        raise ValueError("failed inside")


@pytest.mark.usefixtures("two_threads")
def test_there_are_as_many_threads_as_before_also_behind_an_error():
    with pytest.raises(ValueError, match="inside"):
        fail_in_one_thread()
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_beside_a_gpu_threads_stay_as_they_were():
    with one_thread(torch.device("cuda")):
        assert torch.get_num_threads() == 2
