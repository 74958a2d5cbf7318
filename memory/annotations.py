"""Labels that people gave elsewhere: who imports them gives them here, and who gave them there is a claim."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from memory import acts
from memory.labels import extend_label, open_label
from memory.records import AnnotationsTaken
from memory.rows import exemplars_of, media_of
from memory.store import Store


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
