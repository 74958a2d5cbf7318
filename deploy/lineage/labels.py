"""The history of labels as the API shows it."""

from datetime import UTC, datetime

from deploy.records import LabelEntry
from memory.labels import history
from memory.store import Store


def label_entries(store: Store) -> dict[int, LabelEntry]:
    """Return every label and undo by its number, the newest first. Raises StoreUnavailableError."""
    return {
        entry.id: LabelEntry(
            label=entry.id,
            at=datetime.fromtimestamp(entry.at_ms / 1000, UTC),
            actor=entry.actor,
            what=entry.what,
            undoes=entry.undoes,
            undone_by=entry.undone_by,
            exemplars=entry.exemplars,
            looked_at=entry.looked_at,
        )
        for entry in history(store)
    }
