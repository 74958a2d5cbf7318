import gzip
from dataclasses import replace

import numpy as np
import pytest

from updater.candidate import snapshot
from updater.candidate.snapshot import Snapshot, SnapshotError, made_of, pack_rows, snapshot_rows
from updater.data.training_data import LabelledCrops, Splits


def items(*rows):
    ids, families, sources, labels = zip(*rows, strict=True) if rows else ((), (), (), ())
    return LabelledCrops(
        ids=ids,
        families=families,
        sources=sources,
        groups=tuple(f"group of {name}" for name in ids),
        crops=np.zeros((len(ids), 1, 1, 3), np.uint8),
        starts=np.arange(len(ids) + 1),
        media=np.array([f"{number:064x}" for number in range(len(ids))], np.str_),
        labels=np.array(labels, np.int64),
    )


SPLITS = Splits(
    train=items(("m-0-1", "real", "trip", 1), ("m-0-10", "blend", 'a "quoted"\n\u202esource', 2)),
    calibration=items(("m-0-2", "real", "trip", 1)),
    test=items(("m-0-3", "real", "web", 3)),
)


def test_what_was_packed_reads_back_in_its_order_from_the_same_bytes():
    rows = snapshot_rows(SPLITS)
    read = Snapshot(pack_rows(rows))
    assert list(read) == rows
    assert len(read) == 4
    assert [(row.exemplar, row.split, row.label) for row in rows] == [
        ("m-0-1", "train", 1),
        ("m-0-10", "train", 2),
        ("m-0-2", "calibration", 1),
        ("m-0-3", "test", 3),
    ]
    assert pack_rows(rows) == pack_rows(list(read))


def test_an_exemplar_is_found_by_its_whole_id_alone():
    rows = snapshot_rows(SPLITS)
    read = Snapshot(pack_rows(rows))
    assert [read.find(row.exemplar) for row in rows] == rows
    for other in ("m-0", "m-0-100", "-0-1", "trip", 'm-0-1","media_digest', ""):
        assert read.find(other) is None


def test_items_are_counted_by_label_and_by_source_and_split():
    counted = made_of(snapshot_rows(SPLITS))
    assert counted.labels == {1: {"train": 1, "calibration": 1}, 2: {"train": 1}, 3: {"test": 1}}
    assert counted.sources["trip"] == {"train": 1, "calibration": 1}
    assert type(counted).model_validate_json(counted.model_dump_json()) == counted


def test_items_that_no_memory_holds_have_no_snapshot():
    bare = LabelledCrops(("a",), ("real",), ("web",), ("a",), np.zeros((1, 1, 1, 3), np.uint8), np.arange(2))
    assert snapshot_rows(Splits(SPLITS.train, SPLITS.calibration, bare)) is None


def test_bytes_that_are_no_snapshot_are_refused(monkeypatch):
    whole = pack_rows(snapshot_rows(SPLITS))
    with pytest.raises(SnapshotError, match="cannot be unpacked"):
        Snapshot(b"no gzip")
    with pytest.raises(SnapshotError, match="was cut"):
        Snapshot(whole[:-9])
    with pytest.raises(SnapshotError, match="a line of the training snapshot is none"):
        list(Snapshot(gzip.compress(b'{"exemplar":"m-0-1"}\n')))
    monkeypatch.setattr(snapshot, "MAX_BYTES", 100)
    with pytest.raises(SnapshotError, match="more than 100 bytes"):
        Snapshot(whole)


def test_items_that_a_declaration_labelled_are_marked_and_counted():
    rows = snapshot_rows(replace(SPLITS, by_declaration=frozenset({2, 3})))
    assert [row.declared for row in rows] == [False, True, False, True]
    assert made_of(rows).declared == {"train": 1, "test": 1}
    assert not any(row.declared for row in snapshot_rows(SPLITS))
