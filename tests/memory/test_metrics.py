from memory.metrics import Fill
from memory.store import Store


def test_an_empty_shelf_of_unknowns_is_shown_as_empty(sqlite_url: str) -> None:
    # A series that is not there is no zero: a panel would say that nothing is known.
    store = Store(sqlite_url)
    shown = {
        (metric.name, *sample.labels.values()): sample.value
        for metric in Fill(store).collect()
        for sample in metric.samples
    }
    store.close()
    assert shown["forgewatch_memory_exemplars", "unknown", ""] == 0
