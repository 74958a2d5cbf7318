"""What is drawn for one purpose does not depend on what is drawn for another."""

import numpy as np

from updater import draws
from updater.draws import RandomStream


def test_no_two_streams_of_an_update_share_their_numbers():
    numbers = [one.value[0] for one in RandomStream if not one.value[1].startswith("benchmark")]
    assert len(numbers) == len(set(numbers))


def test_a_stream_draws_the_same_for_the_same_place_and_other_numbers_for_another():
    def first(stream, *place):
        return stream.generator(*place).random()

    assert first(RandomStream.BATCHES, 3, 0, 7) == np.random.default_rng([3, 3, 0, 7]).random()
    drawn = {
        first(stream, seed, number)
        for stream in (RandomStream.BATCHES, RandomStream.FORGERIES)
        for seed in (0, 1)
        for number in (0, 1)
    }
    assert len(drawn) == 8


def test_draws_by_running_sums_are_those_by_chances():
    chances = np.random.default_rng(0).random(1000) ** 3
    chances /= chances.sum()
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    found = draws.draw(one, draws.cumulative(chances), 500)
    assert np.array_equal(found, other.choice(1000, 500, p=chances))
    assert one.random() == other.random()
