"""What a file's path says of it: FAMILY/[GROUP/]FILE, where the folder `real` or `0_real` holds reals."""

from memory.labels import LabelError, checked_name
from memory.records import REAL
from memory.shelves import IGNORE

_REAL_FOLDERS = (REAL, "0_real")
_LONGEST_PATH = 1000


def place(path: str) -> tuple[str, str | None]:
    """Return the class and the group that a path (with slashes, below the imported folder) names.

    Files of one GROUP must stay on one side of the split, across families; None where it names none.
    Raises LabelError, whose text is one line, where it names no class.
    """
    if not path.isprintable() or len(path) > _LONGEST_PATH:
        raise LabelError(f"its name is no printable text of at most {_LONGEST_PATH} characters")
    folder, *rest = path.split("/")
    if not rest:
        raise LabelError("lies in no family's folder")
    family = checked_name(REAL if folder in _REAL_FOLDERS else folder)
    if family == IGNORE:
        raise LabelError("a folder cannot be ignored by its name")
    return family, rest[0] if len(rest) > 1 else None


def conflict(family: str, known_as: str) -> str | None:
    """Return why media is not taken in as family; None where the memory calls it that already.

    known_as is what the memory calls the same bytes, "" where it gives them no name.
    """
    if family == known_as:
        return None
    return f"the same bytes are in the memory {f'as {known_as}' if known_as else 'without a label'}"
