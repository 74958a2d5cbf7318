from collections.abc import Callable
from unittest.mock import Mock

import pytest
from verdicts import make_item, make_verdict

from detector.reading import WITHDRAWAL_TYPE
from detector.records import Verdict, Withdrawal
from ingest.records import InRecord
from memory import metrics
from memory.labels import label, undo
from memory.rows import exemplars_of
from memory.settings import MemorySettings
from memory.shift.watch import ShiftWatch
from memory.store import Store
from memory.taken_back import ignore_retracted

BAD, GOOD = "a" * 64, "b" * 64


@pytest.fixture
def take(settings: MemorySettings) -> Callable[..., None]:
    """Has the watch read records, from offset `first` on."""
    watch = ShiftWatch(settings)
    watch.shelve_and_announce = watch.forget = Mock()  # type: ignore[method-assign]

    def take(first: int, *said: Verdict | Withdrawal) -> None:
        kind = {Withdrawal: (("ce_type", WITHDRAWAL_TYPE.encode()),)}
        watch.take(
            [
                InRecord("verdicts", 0, n, n, None, each.model_dump_json().encode(), kind.get(type(each), ()))
                for n, each in enumerate(said, first)
            ]
        )

    yield take
    watch.close()


def unknown(number: int) -> Verdict:
    return make_verdict(make_item(number), release=BAD)


def corrected(number: int, **changes: object) -> Verdict:
    return make_verdict(make_item(number), **{"release": GOOD, "supersedes": BAD, "label": "real"} | changes)


def shelves(store: Store, *ids: str) -> list[str]:
    with store.read() as connection:
        return [each.shelf for each in exemplars_of(connection, list(ids))]


def test_an_unknown_that_is_corrected_or_withdrawn_leaves_what_waits_and_one_that_is_labelled_stays(
    take, fill, make, store
):
    fill([make(number, release=BAD) for number in (1, 2, 3, 4)])
    label(store, ["media-0-3"], "blend", "ada")
    before = metrics.UNREADABLE._value.get()
    take(0, *map(unknown, (1, 2, 3, 4)))
    withdrawal = Withdrawal(id="media-0-2", item=make_item(2), release=BAD, reason="the media is gone")
    take(4, corrected(1), withdrawal, corrected(3))
    assert metrics.UNREADABLE._value.get() == before
    first, second, labelled, same = shelves(store, *(f"media-0-{n}" for n in (1, 2, 3, 4)))
    assert (first, second, same) == ("ignored", "ignored", "unknown")
    assert labelled in ("rehearsal", "held-back")
    undo(store, 2, "ada")
    assert shelves(store, "media-0-1", "media-0-2") == ["unknown", "unknown"]


def test_an_unknown_that_comes_after_its_correction_does_not_wait(take, fill, make, store):
    take(0, unknown(1), corrected(1), unknown(2))
    fill([make(1, release=BAD), make(2, release=BAD), make(3, release=GOOD)])
    with store.write() as connection:
        assert ignore_retracted(connection, ["media-0-1", "media-0-2", "media-0-3"]) == 1
    assert shelves(store, "media-0-1", "media-0-2", "media-0-3") == ["ignored", "unknown", "unknown"]


def test_what_the_restored_release_calls_unknown_waits(take, fill, make, store):
    take(0, make_verdict(make_item(1), release=BAD, label="real"), corrected(1, label="unknown"))
    fill([make(1, release=GOOD)])
    with store.write() as connection:
        assert ignore_retracted(connection, ["media-0-1"]) == 0


def test_a_correction_is_not_bet_on_again(take):
    before = metrics.WATCHED._value.get()
    take(0, make_verdict(make_item(1), release=BAD, label="real"), corrected(1), corrected(2))
    assert metrics.WATCHED._value.get() == before + 1
