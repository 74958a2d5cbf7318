"""What files declare teaches the pixels: from a stream with misses to a release that names their family."""

from dataclasses import replace

import numpy as np
import pytest
from verdicts import make_item

from detector.records import Timings
from detector.release.artifact import EVALUATION, EVALUATION_PAGE, MODEL_CARD, SNAPSHOT
from detector.release.contract import request_for
from detector.serving.session import open_session
from detector.unknowns import encode
from detector.verdicts import Origin, build
from ingest.records import Decoded, InRecord, Metadata, Provenance
from memory.declarations import label_declared, missed_exemplars, waiting_declarations
from memory.features import FEATURE_VERSION, WIDTH
from memory.index.index import Index
from memory.intake import remember as take_in
from memory.labels import label
from memory.worker import arrival_of
from updater.candidate.snapshot import Snapshot
from updater.records import Evaluation

TRUSTED = Provenance(state="valid_trusted", declares="generated", signer="Maker", generator="Midjourney")
UNSIGNED = Provenance(metadata=Metadata(declares="generated", generator="ComfyUI"))


def judge(release, pictures):
    """Return a release's verdict on each picture, and the message by which the memory gets it."""
    session = open_session(release, threads=1)
    output = session.score(request_for(pictures, session.contract))
    items, timings = map(make_item, range(1000, 1000 + len(pictures))), Timings(decode_s=0, model_s=0)
    origins = [Origin(f"media-0-{item.offset}", item, timings) for item in items]
    verdicts = build(origins, pictures, output, release)
    rows = zip(verdicts, pictures, output["features"], output["embedding"], strict=True)
    return verdicts, [encode(v, picture.crops, *row, FEATURE_VERSION) for v, picture, *row in rows]


@pytest.mark.slow
def test_of_300_items_the_20_whose_pixels_missed_a_declared_family_teach_the_next_release_its_name(
    few_measured, make_settings, remember, labelled, store, crops, deploy_server, learn
):
    def pictures(family, count, seed):
        shown = np.split(labelled({family: count}, seed).crops, count)
        return [Decoded("image", "PNG", 64, 64, 1, two, ()) for two in shown]

    def names(release, shown):
        return [v.family if v.label == "fake" else v.label for v in judge(release, shown)[0]]

    remember("real", 120)
    remember("blocky", 50)
    with deploy_server() as server:
        settings = make_settings(server[0], learner="lda", backbone="none")
        first = learn(*server, settings)
        faint = pictures("faint", 100, 1001)
        called = np.array(names(first, faint))
        chosen = [*np.flatnonzero(called == "real")[:20], *np.flatnonzero(called == "unknown")[:15]]
        missed = [faint[place] for place in chosen[:20]]
        told = [faint[place] for place in chosen] + pictures("blocky", 25, 1002)
        files = [replace(shown, provenance=UNSIGNED if n % 3 else TRUSTED) for n, shown in enumerate(told)]
        verdicts, messages = judge(first, files + pictures("real", 240, 1003))
        assert [v.label for v in verdicts[:60]] == ["fake"] * 60
        assert {v.family for v in verdicts[:60]} == {"declared:generated"}
        records = [InRecord("u", 0, n, 0, None, data, ()) for n, data in enumerate(messages)]
        kept = [arrival_of(record) for record, v in zip(records, verdicts, strict=True) if v.for_memory]
        with store.write() as connection:
            digests = [crops.put(arrival.crops) for arrival in kept]
            new = take_in(connection, crops, Index(FEATURE_VERSION, WIDTH), kept, digests, near=0.0).new
            listed = {exemplar.id for exemplar in missed_exemplars(connection, 100)}
            label_declared(connection, new)
            waiting = waiting_declarations(connection)
        assert listed == {v.id for v in verdicts[:20]}
        label(store, list(waiting), "midjourney", "ann")
        second = learn(*server, settings)

    fresh, real = pictures("faint", 60, 1004), pictures("real", 60, 1005)
    assert names(first, missed) == ["real"] * 20
    assert names(second, missed).count("midjourney") >= 18
    assert names(first, fresh).count("real") >= 30
    assert names(second, fresh).count("midjourney") >= 50
    assert [names(release, real).count("real") >= 45 for release in (first, second)] == [True, True]

    evaluation = Evaluation.model_validate_json((second.folder / EVALUATION).read_bytes())
    before, after = evaluation.before.declared, evaluation.after.declared
    assert before.caught < after.caught <= after.items == before.items
    rows = Snapshot((second.folder / SNAPSHOT).read_bytes())
    assert {row.exemplar for row in rows if row.declared} == {v.id for v in verdicts[:35:3]}
    for name in (EVALUATION_PAGE, MODEL_CARD):
        text = (second.folder / name).read_text()
        assert f"that declare a generative model, not called real: {before} → {after}, 95 %" in text
        assert "Labelled by their files' declarations, and by no person: " in text
