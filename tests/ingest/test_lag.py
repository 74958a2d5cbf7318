import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ingest.metrics import Lag, Reach, records_behind
from ingest.records import InRecord

A, B = ("media", 0), ("media", 1)


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def lag(clock, registry):
    return Lag("waiting_seconds", "Age.", registry, clock)


def record(offset, at_s, place=A):
    return InRecord(*place, offset, int(at_s * 1000), None, b"", ())


def test_there_is_no_sample_until_the_consumer_is_in_its_group(lag, registry):
    lag.on_poll([record(0, 900)], {})
    assert generate_latest(registry) == b""
    lag.assign([])
    assert b"waiting_seconds 0.0" in generate_latest(registry)


def test_a_partition_that_stands_still_grows_older_though_nothing_is_polled(lag, clock):
    lag.assign([A])
    lag.on_poll([record(7, 990), record(8, 995)], {A: Reach(9, 9, fetched=True)})
    assert lag.seconds() == 10
    clock.now += 3600
    assert lag.seconds() == 3610
    lag.on_answers({A: 8})
    assert lag.seconds() == 3605
    lag.on_answers({A: 9})
    assert lag.seconds() == 0


def test_a_record_is_no_older_than_the_one_before_it_whatever_its_producer_s_clock_says(lag):
    lag.assign([A, B])
    lag.on_poll([record(0, 990), record(1, 900), record(2, 998), record(0, 980, B)], {})
    assert lag.seconds() == 20
    lag.on_answers({B: 1, A: 1})
    assert lag.seconds() == 10


NOW = 1_790_000_000.0
WRONG = [NOW / 1000, 0, -1, -NOW, NOW * 1000, NOW + 86_400, NOW - 365 * 86_400]


@pytest.mark.parametrize("stamp", [*WRONG, NOW - 86_400])
def test_a_wrong_clock_makes_no_lag_where_the_consumer_kept_up(lag, clock, stamp):
    clock.now = NOW
    lag.assign([A])
    lag.on_poll([record(0, NOW)], {A: Reach(1, 1, fetched=True)})
    lag.on_answers({A: 1})
    item = record(1, stamp)
    lag.on_poll([item], {A: Reach(2, 3, fetched=True)})
    assert (lag.seconds(), lag.came(item)) == (0, NOW)
    clock.now += 7
    assert lag.seconds() == 7


@pytest.mark.parametrize("stamp", WRONG)
def test_a_wrong_clock_makes_no_lag_and_hides_none_in_a_backlog(lag, clock, stamp):
    clock.now = NOW
    lag.assign([A])
    lag.on_poll([record(0, stamp)], {A: Reach(1, 9, fetched=True)})
    clock.now += 3
    assert lag.seconds() == 3
    lag.on_poll([record(1, NOW - 600), record(2, stamp)], {A: Reach(3, 9, fetched=True)})
    lag.on_answers({A: 2})
    assert lag.seconds() == 603


def test_what_is_read_again_is_as_old_as_it_was(lag, clock):
    lag.assign([A])
    lag.on_poll([record(0, 990), record(1, 990)], {A: Reach(2, 2, fetched=True)})
    clock.now += 900
    lag.on_poll([record(0, 990)], {A: Reach(1, 2, fetched=True)})
    lag.on_answers({A: 1})
    assert lag.seconds() == 910
    lag.on_poll([record(1, 990)], {A: Reach(2, 2, fetched=True)})
    assert lag.seconds() == 910


def test_a_timestamp_of_the_future_is_no_negative_age_and_none_counts_from_when_it_was_read(lag, clock):
    lag.assign([A])
    lag.on_poll([record(0, 5000)], {})
    assert lag.seconds() == 0
    lag.on_answers({A: 1})
    lag.on_poll([InRecord(*A, 1, -1, None, b"", ())], {})
    clock.now += 5
    assert lag.seconds() == 5


def test_what_is_not_read_yet_is_no_older_than_the_record_before_it(lag, clock):
    lag.assign([A])
    lag.on_poll([record(0, 400)], {A: Reach(1, 50, fetched=True)})
    lag.on_answers({A: 1})
    assert lag.seconds() == 600
    clock.now += 60
    assert lag.seconds() == 660


def test_after_a_quiet_day_a_new_record_has_not_waited_for_a_day(lag, clock):
    lag.assign([A])
    lag.on_poll([record(0, 1000)], {A: Reach(1, 1, fetched=True)})
    lag.on_answers({A: 1})
    clock.now += 86_400
    lag.on_poll([], {A: Reach(1, 1, fetched=True)})
    clock.now += 0.5
    lag.on_poll([], {A: Reach(1, 2, fetched=True)})
    assert lag.seconds() == 0.5
    clock.now += 10
    assert lag.seconds() == 10.5


def test_a_backlog_of_which_nothing_was_read_counts_from_when_it_was_seen(lag, clock):
    lag.assign([A])
    lag.on_poll([], {A: Reach(0, 9, fetched=True)})
    clock.now += 4
    lag.on_poll([], {A: Reach(0, 9, fetched=True)})
    assert lag.seconds() == 4


def test_a_paused_partition_is_not_taken_for_one_that_is_read_to_its_end(lag, clock):
    lag.assign([A])
    lag.on_poll([], {A: Reach(3, 5, fetched=True)})
    clock.now += 30
    lag.on_poll([], {A: Reach(5, 5, fetched=False)})
    assert lag.seconds() == 30


def test_partitions_of_another_member_are_forgotten_and_the_others_are_not(lag):
    lag.assign([A, B])
    lag.on_poll([record(4, 500), record(2, 800, B)], {})
    lag.assign([B])
    assert lag.seconds() == 200


def test_what_another_member_answered_in_between_is_forgotten_once_the_position_says_so(lag):
    lag.assign([A])
    lag.on_poll([record(4, 500), record(5, 700)], {})
    lag.assign([A])
    assert lag.seconds() == 500
    lag.on_poll([record(5, 700)], {A: Reach(6, 6, fetched=True)})
    assert lag.seconds() == 300
    lag.on_answers({A: 6})
    assert lag.seconds() == 0


def test_records_that_are_read_again_count_once(lag):
    lag.assign([A])
    for _ in range(3):
        lag.on_poll([record(4, 500), record(5, 700)], {A: Reach(6, 6, fetched=True)})
    lag.on_answers({A: 6})
    assert lag.seconds() == 0


def test_the_records_behind_are_those_of_all_partitions():
    assert records_behind({A: Reach(3, 10, fetched=True), B: Reach(5, 4, fetched=False)}) == 7


def test_records_of_a_topic_that_was_made_anew_take_the_place_of_the_old_ones(lag, clock):
    lag.assign([A])
    lag.on_poll([record(700, 100), record(701, 100)], {A: Reach(702, 702, fetched=True)})
    clock.now += 15
    lag.on_poll([record(0, 1005)], {A: Reach(1, 1, fetched=True)})
    assert lag.seconds() == 10
    lag.on_answers({A: 1})
    assert lag.seconds() == 0
