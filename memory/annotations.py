"""Labels that people gave elsewhere, by annotations or folders: who imports them gives them here.

Who gave them there is a claim.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from memory import acts
from memory.labels import LabelError, checked_name, extend_label, open_label
from memory.records import IGNORE, REAL, AnnotationsTaken
from memory.rows import exemplars_of, media_of
from memory.store import Store

_REAL_FOLDERS = (REAL, "0_real")
_FAKE_FOLDERS = ("fake", "1_fake")
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class Annotation:
    """One annotator's label of one exemplar, by a file: a family, real or ignore."""

    exemplar: str
    family: str
    annotator: str


def take(store: Store, marks: Sequence[Annotation], importer: str, *, dry: bool = False) -> AnnotationsTaken:
    """Label waiting exemplars by their annotations, one label for each annotator and class; all or nothing.

    The importer gives the labels; the annotator stands beside each on record: nobody proved who it was.
    What bears a label stays as it is, so that twice is once, and a person's word here counts. At most one
    annotation an exemplar. dry: change nothing; return the same. Raises LabelError, StoreUnavailableError.
    """
    done = AnnotationsTaken(labels=[], labelled=0, already=0, left_out=[])
    wanted = {mark.exemplar: mark for mark in marks}
    by_label: dict[tuple[str, str], list[str]] = defaultdict(list)
    with store.write() as connection:
        known = media_of(connection, list(wanted))
        done.left_out += [f"{name}: there is no such exemplar" for name in wanted if name not in known]
        for exemplar in exemplars_of(connection, list(known)):
            mark = wanted[exemplar.id]
            calls = "ignore" if exemplar.shelf == "ignored" else exemplar.family
            if exemplar.crops_digest is None:
                done.left_out.append(f"{exemplar.id}: its crops were purged")
            elif exemplar.shelf == "unknown":
                by_label[mark.annotator, mark.family].append(exemplar.id)
            elif calls == mark.family:
                done.already += 1
            else:
                done.left_out.append(f"{exemplar.id}: it is called {calls} here, and {mark.family} there")
        done.labelled = sum(map(len, by_label.values()))
        if dry:
            return done
        for (annotator, family), ids in by_label.items():
            number = open_label(connection, family, importer)
            extend_label(connection, number, ids)
            details = {"label": number, "what": family, "annotator_claimed": annotator, **acts.as_fields(ids)}
            acts.append(connection, importer, "import label", f"label {number}", details)
            done.labels.append((annotator, family, number))
    return done


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
    others = _FAKE_FOLDERS if family == REAL else _REAL_FOLDERS
    if wrong := [name for name in rest[:-1] if name in others]:
        raise LabelError(f"its folder {wrong[0]} contradicts {folder}: put it into DIR/{REAL} or DIR/FAMILY")
    return family, rest[0] if len(rest) > 1 else None


def conflict(family: str, known_as: str, exemplar: str) -> str | None:
    """Return why media is not taken in as family, and a remedy; None where it is called that already.

    known_as is what the memory calls the same bytes, "" where it gives them no name, under this id.
    """
    if family == known_as:
        return None
    known = f"as {known_as}" if known_as else "without a label"
    return f"the same bytes are in the memory {known}; to call them so: forgewatch label {exemplar} {family}"
