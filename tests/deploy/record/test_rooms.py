"""What people do in the memory comes on record once, whatever stops in between."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from deploy.record.record import Record
from deploy.record.rooms import MemoryActs
from memory import acts
from memory.store import Store


@pytest.fixture
def memory(tmp_path: object) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/memory.sqlite")
    yield opened
    opened.close()


def put(memory: Store, *subjects: str) -> None:
    for subject in subjects:
        with memory.write() as connection:
            acts.append(connection, "ada", "split", subject, {"into": [subject, "é"]})


def subjects(record: Record) -> list[str]:
    return [entry.subject for entry in reversed(record.entries(1000))]


def test_each_act_of_the_memory_comes_on_record_once_in_its_order(record: Record, memory: Store) -> None:
    way = MemoryActs(memory, record)
    put(memory, "c1", "c2")
    assert (way.bring_in(), way.bring_in()) == (2, 0)
    put(memory, "c3")
    assert way.bring_in() == 1
    assert MemoryActs(memory, record).bring_in() == 0  # a server that starts anew
    assert subjects(record) == ["c1", "c2", "c3"]
    assert record.entries(1)[0].details == {"into": ["c3", "é"]}


def test_a_memory_s_transaction_that_fails_leaves_no_act(record: Record, memory: Store) -> None:
    def purge() -> None:
        with memory.write() as connection:
            acts.append(connection, "ada", "purge", "camera")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        purge()
    assert MemoryActs(memory, record).bring_in() == 0


def test_servers_that_bring_in_at_once_do_so_once(url: str, memory: Store) -> None:
    put(memory, *(f"c{number}" for number in range(30)))
    records = [Record(url) for _ in range(4)]
    ways = [MemoryActs(memory, record) for record in records]
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(MemoryActs.bring_in, ways)) == 30
    assert subjects(records[0]) == [f"c{number}" for number in range(30)]
    for record in records:
        record.close()


def test_a_memory_that_was_restored_loses_no_act_that_came_after(
    tmp_path: object, record: Record, memory: Store
) -> None:
    put(memory, "c1")
    older = Store(f"sqlite:///{tmp_path}/older.sqlite")
    with memory.read() as connection, older.write() as copy:
        (first,) = acts.acts_after(connection, 0, 10)
        row = {name: getattr(first, name) for name in ("id", "uid", "actor", "action", "subject")}
        copy.execute(acts.acts.insert(), row | {"at_ms": 1, "details": "{}"})
    put(memory, "c2", "c3")
    MemoryActs(memory, record).bring_in()
    put(older, "c4")  # by the number that c2 had
    MemoryActs(older, record).bring_in()
    older.close()
    assert subjects(record) == ["c1", "c2", "c3", "c4"]
