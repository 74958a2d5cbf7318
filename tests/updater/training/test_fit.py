"""The loop of training: as by hand, interrupted or not, at any rate."""

import pytest
import torch

from updater.training.fit import (
    Checkpoint,
    Descent,
    TrainingStage,
    by_schedule,
    fit,
    half_precision,
    in_epochs,
    one_thread,
    seed_draws,
)
from updater.training.step import SCHEDULES, cosine, one_cycle, tenths

CPU = torch.device("cpu")


def test_a_processor_trains_in_full_precision():
    with half_precision(CPU):
        assert torch.nn.functional.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype == torch.float32


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


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_share_is_above_the_peak_and_the_last_is_small(name):
    shares = [SCHEDULES[name](done / 100) for done in range(101)]
    assert max(shares) == pytest.approx(1)
    assert 0 <= min(shares) == shares[-1] <= 0.0011


def test_one_cycle_rises_in_a_fifth_and_falls_after_it():
    shares = [one_cycle(done / 100) for done in range(101)]
    assert shares[0] == pytest.approx(0.05)
    assert shares[:21] == sorted(shares[:21])
    assert shares[20:] == sorted(shares[20:], reverse=True)


def test_tenths_falls_three_times():
    assert [tenths(done / 170) for done in (0, 59, 60, 101, 102, 144, 145, 169)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )


def test_cosine_is_half_way_in_the_middle():
    assert [cosine(done) for done in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])


INPUTS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
TRUTH = torch.arange(10) % 2


def line():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return torch.nn.Linear(3, 2)


def test_a_schedule_in_epochs_with_clipping_is_that_of_a_loop_by_hand():
    by_hand, fitted = line(), line()
    optimiser = torch.optim.SGD(by_hand.parameters(), 0.5, momentum=0.9)
    falls = torch.optim.lr_scheduler.StepLR(optimiser, 1)
    torch.manual_seed(2)
    for _ in range(3):
        for rows in torch.split(torch.randperm(10), 4):
            optimiser.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(by_hand(INPUTS[rows]), TRUTH[rows]))
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
            optimiser.step()
        falls.step()
    optimiser, seen = torch.optim.SGD(fitted.parameters(), 0.5, momentum=0.9), []
    falls = torch.optim.lr_scheduler.StepLR(optimiser, 1)
    torch.manual_seed(2)
    fit(
        fitted,
        in_epochs(lambda: torch.randperm(10), 4, 3),
        lambda rows: torch.nn.functional.cross_entropy(fitted(INPUTS[rows]), TRUTH[rows]),
        Descent(optimiser, 9, by_schedule(falls, every=3), longest=0.1),
        progress=lambda *at: seen.append(at),
    )
    assert torch.equal(fitted.weight, by_hand.weight)
    assert seen == [(number, 9) for number in range(1, 10)]


def test_what_was_interrupted_goes_on_behind_its_last_state_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 2)
    begun = []

    def trained(path, stop_at=None):
        module = line()

        def loss(row):
            begun.append(row)
            if row == stop_at:
                raise InterruptedError
            return torch.nn.functional.cross_entropy(module(INPUTS[[row]]), TRUTH[[row]])

        stage = TrainingStage(Checkpoint(tmp_path / path, "mine", ("only",)), "only")
        descent = Descent(torch.optim.Adam(module.parameters(), 0.1), 7)
        fit(module, lambda steps: (row for row in steps), loss, descent, stage)
        return module.weight

    unbroken = trained("unbroken")
    with pytest.raises(InterruptedError):
        trained("broken", stop_at=5)
    begun.clear()
    assert torch.equal(trained("broken"), unbroken)
    assert begun == [4, 5, 6]
