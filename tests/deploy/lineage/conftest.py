"""Two releases, of which the second goes back to the first, with the labels that taught them."""

import pytest
from lineage_story import MEDIA, Story, exemplar, line
from verdicts import make_item, make_verdict

from detector.records import Neighbour
from ingest.records import InRecord
from memory.labels import label
from memory.rows import insert_rows
from memory.verdict_index import note_verdicts


@pytest.fixture
def note(services):
    """Writes where a verdict lies, at the offset of its item."""

    def write(verdict):
        at, at_ms = verdict.item.offset, 1_700_000_000_000 + verdict.item.offset
        record = InRecord("forgewatch.verdicts", 0, at, at_ms, None, b"", ())
        with services.memory.write_unversioned() as connection:
            note_verdicts(connection, [(record, verdict)])

    return write


@pytest.fixture
def go_live(http, propose, candidate_of):

    def take(artifact, by):
        propose(artifact)
        body = {"evaluation_digest": candidate_of(artifact).evaluation_digest}
        path = f"/releases/{artifact.digest}/approve"
        answer = http.post(path, json=body, headers={"X-Forgewatch-Actor": by})
        assert answer.status_code == 200, answer.text

    return take


@pytest.fixture
def story(services, make_artifact, go_live, note):
    """Label 1, by bea: real, of a trip. Label 2, by cem: blend, off the web. Label 3, by bea: upsampling."""
    with services.memory.write() as connection:
        insert_rows(connection, [exemplar(n, "trip" if n < 3 else "web") for n in range(1, 6)])
    for numbers, what, actor in (
        ((1, 2), "real", "bea"),
        ((3, 4), "blend", "cem"),
        ((5,), "upsampling", "bea"),
    ):
        label(services.memory, [f"{MEDIA}-0-{number}" for number in numbers], what, actor)
    old = [
        line(1, "real", "train", "trip", 1),
        line(2, "real", "test", "trip", 1),
        line(3, "blend", "train", "web", 2),
        line(4, "blend", "calibration", "web", 2),
    ]
    first = make_artifact(rows=old)
    go_live(first, "bea")
    # Nothing of label 2 is rehearsed.
    second = make_artifact(first, ("upsampling",), [*old[:2], line(5, "upsampling", "train", "web", 3)])
    go_live(second, "cem")
    near = [Neighbour(exemplar=f"{MEDIA}-0-{n}", family="real", distance=float(n)) for n in (1, 5, 77)]
    for offset, release in ((100, first), (101, first), (102, second)):
        item = make_item(offset, topic=MEDIA, source="web")
        verdict = make_verdict(item, label="real", release=release.digest, neighbours=tuple(near))
        note(verdict)
    return Story(first, second, verdict)
