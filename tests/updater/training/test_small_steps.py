import pytest
import torch

from updater.training.precision import one_thread, seed_draws

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
