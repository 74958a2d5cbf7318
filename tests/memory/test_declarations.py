"""Declarations of files: clusters sum them up, misses are kept, and they propose labels."""

import numpy as np
import pytest
from sqlalchemy import select
from verdicts import make_item, make_verdict

from detector.release.manifest import ProvenancePolicy, apply_policy
from detector.unknowns import encode
from ingest.records import InRecord, Metadata, Provenance
from memory import declarations, retention
from memory.clusters.review import label_cluster, list_clusters
from memory.clusters.views import upsert_cluster
from memory.declarations import (
    ACTOR,
    count_missed,
    declaration_of,
    family_of,
    label_declared,
    missed_exemplars,
)
from memory.estimate.accuracy import accuracy
from memory.features import FEATURE_VERSION
from memory.labels import LabelError, history, label, labelled_counts, undo
from memory.records import Declared
from memory.rows import exemplars_of, now_ms
from memory.schema import exemplars
from memory.settings import MemorySettings
from memory.shift.watch import ShiftWatch
from memory.verdict_index import search_verdicts
from memory.worker import arrival_of

DATABASES = ("sqlite_url", "postgresql_url")
TRUSTED = Provenance(state="valid_trusted", declares="generated", signer="Maker CA", generator="Midjourney")
UNSIGNED = Provenance(metadata=Metadata(declares="generated", generator="ComfyUI"))
INVALID = TRUSTED.model_copy(update={"state": "invalid"})
CAMERA = Provenance(state="valid_trusted", declares="captured", signer="Camera")
EVIL = "\u202e<script>real</script>"


def declared(generator="Midjourney", signer=None, missed=False):
    return Declared(declares="generated", generator=generator, signer=signer, missed=missed)


@pytest.mark.parametrize(
    ("provenance", "label", "pixels", "expected"),
    [
        (TRUSTED, "fake", "real", declared(signer="Maker CA", missed=True)),
        (UNSIGNED, "fake", "unknown", declared("ComfyUI")),
        (UNSIGNED, "real", None, declared("ComfyUI", missed=True)),  # a policy of evidence alone
        (INVALID, "unknown", "real", Declared()),
        (CAMERA, "unknown", None, Declared()),
        (Provenance(), "unknown", None, Declared()),
    ],
)
def test_an_exemplar_keeps_its_declaration_of_generation(provenance, label, pixels, expected):
    verdict = make_verdict(make_item(1), provenance=provenance, label=label, pixel_label=pixels)
    assert declaration_of(verdict) == expected
    assert verdict.for_memory == (expected.declares is not None or label == "unknown")


@pytest.mark.parametrize(
    ("generator", "family"),
    [
        ("Midjourney", "midjourney"),
        ("DALL·E 3", "dall-e-3"),
        ("real", "generated"),
        ("ignore", "generated"),
        ("unknown", "generated"),
        ("4o", "generated"),
        (None, "generated"),
        (EVIL, "script-real-script"),
        ("x" * 200, "x" * 64),
    ],
)
def test_a_file_proposes_a_proper_family_and_never_real(generator, family):
    assert family_of(generator, "generated") == family


def test_of_300_items_60_declare_generation_and_the_20_that_the_pixels_missed_are_listed_and_learnt(
    settings, store, fill, database_url
):
    rng, release = np.random.default_rng(0), "a" * 64
    pixels = ["real"] * 20 + ["unknown"] * 15 + ["fake"] * 25
    files = [UNSIGNED if n % 3 else TRUSTED for n in range(60)]
    stream = [
        make_verdict(make_item(n), provenance=file, label=of_pixels).model_copy(
            update=apply_policy(file, ProvenancePolicy(), of_pixels)
        )
        for n, (file, of_pixels) in enumerate(zip(files, pixels, strict=True))
    ]
    stream += [make_verdict(make_item(n), label="unknown" if n % 4 == 0 else "real") for n in range(60, 300)]
    watch = ShiftWatch(MemorySettings(database_url=database_url))
    said = [verdict.model_dump_json().encode() for verdict in stream]
    watch.take([InRecord("verdicts", 0, n, now_ms(), None, value, ()) for n, value in enumerate(said)])
    watch.close()

    def message(verdict):
        crops, features = rng.integers(0, 256, (1, 16, 16, 3), np.uint8), rng.normal(size=24)
        return encode(verdict, crops, features.astype(np.float32), np.ones(4, np.float32), FEATURE_VERSION)

    values = [message(verdict) for verdict in stream if verdict.for_memory]
    fill([arrival_of(InRecord("unknowns", 0, n, 0, None, value, ())) for n, value in enumerate(values)])
    with store.read() as connection:
        fakes = search_verdicts(connection, 300, label="fake")
        missed = missed_exemplars(connection, 100)
        estimated = accuracy(connection, release, now_ms(), 7)
    assert {found.family for found in fakes} == {"declared:generated"}
    assert len(fakes) == 60
    assert sorted(item.id for item in missed) == sorted(f"media-0-{n}" for n in range(20))
    assert estimated.declared == {"real": 20, "unknown": 15, "fake": 25}
    assert estimated.over_all.items == 180  # those that the pixels decided, without unknown ones
    with store.write() as connection:
        waiting = connection.scalars(select(exemplars.c.id).where(exemplars.c.shelf == "unknown")).all()
        upsert_cluster(connection, sorted(waiting), shown_ms=0, place=0, spread=1.0, unclustered=False)
    (cluster,) = list_clusters(store)
    assert cluster.declaration == "35 of 95 declare a generative model (ComfyUI 23, Midjourney 12)"
    one = cluster.declared.model_copy(update={"items": 1})
    assert "1 of 95 declares a" in cluster.model_copy(update={"declared": one}).declaration
    assert cluster.declared.family == "comfyui"
    number, ids = label_cluster(store, cluster.id, "diffusion", "ada", cluster.version, declared=True)
    assert sorted(ids) == sorted(f"media-0-{n}" for n in range(35))
    (rest,) = list_clusters(store)
    assert (rest.size, rest.declaration) == (60, "")
    with store.read() as connection:
        assert count_missed(connection) == 0
        known = labelled_counts(connection)
    assert sum(count.items for count in known if count.family == "diffusion") == 35
    assert {count.split for count in known} == {"train", "calibration", "test"}
    with pytest.raises(LabelError, match="nothing to label"):
        label_cluster(store, cluster.id, "diffusion", "ada", declared=True)
    undo(store, number, "ada")
    with store.read() as connection:
        assert count_missed(connection) == 20


def auto(store, ids):
    with store.write() as connection:
        label_declared(connection, ids)
    with store.read() as connection:
        return [item.family for item in exemplars_of(connection, ids)]


def test_only_a_trusted_signer_labels_and_a_person_s_label_always_wins(store, fill, make):
    signed = declared(signer="Maker CA", missed=True)
    fill([make(1), make(2), make(20)])
    label(store, ["media-0-1", "media-0-2"], "real", "ada")
    fill(
        [
            make(3, declared=signed),
            make(4, declared=declared()),  # signed by nobody who is trusted
            make(5, declared=signed, media_digest=f"{1:064x}"),  # the very bytes that ada called real
            make(6, declared=signed, group="media-0-2"),  # shows the same as what ada called real
            make(7, declared=signed, group="media-0-20"),  # as what nobody labelled
        ]
    )
    ids = [f"media-0-{n}" for n in range(3, 8)]
    assert auto(store, ids) == ["midjourney", None, None, None, "midjourney"]
    (given, _) = history(store)
    assert (given.actor, given.exemplars) == (ACTOR, 2)
    label(store, ["media-0-3"], "real", "ada")
    assert auto(store, ids)[0] == "real"
    undo(store, history(store)[0].label, "ada")
    undo(store, given.label, "ada")
    fill([make(8, declared=signed)])
    assert auto(store, [*ids, "media-0-8"]) == [None] * 6  # whoever undid it has decided for the family


def test_a_signer_labels_so_many_and_no_more(store, fill, make, monkeypatch):
    monkeypatch.setattr(declarations, "MAX_PER_SIGNER", 3)
    makers = {n: "one" if n < 5 else "two" for n in range(7)}
    fill([make(n, declared=declared(signer=maker)) for n, maker in makers.items()])
    ids = [f"media-0-{n}" for n in makers]
    assert auto(store, ids[:2]) == ["midjourney"] * 2
    assert auto(store, ids) == ["midjourney"] * 3 + [None] * 2 + ["midjourney"] * 2


@pytest.mark.parametrize("order", [range(9), range(8, -1, -1)])
def test_of_missed_items_a_sample_of_each_source_is_kept_whatever_their_order(
    store, fill, make, crops, monkeypatch, order
):
    monkeypatch.setattr(retention, "MOST_MISSED", 4)
    fill([make(n, declared=declared(missed=True)) for n in order])
    fill([make(n, declared=declared(missed=True), source="other") for n in range(20, 23)])
    fill([make(n, declared=declared()) for n in range(30, 36)])
    assert retention.purge_sources(store, crops) == 5
    assert retention.purge_sources(store, crops) == 0
    with store.read() as connection:
        kept = {item.id for item in missed_exemplars(connection, 100)}
    assert len(kept) == 7
    assert {f"media-0-{n}" for n in (1, 3, 6, 7)} < kept  # whose ids have the lowest hashes
