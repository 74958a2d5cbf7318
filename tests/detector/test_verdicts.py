import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import save
from verdicts import make_decoded, make_item

from detector.records import Rollout, Timings, Verdict
from detector.release.contract import request_for
from detector.release.manifest import SourceThresholds
from detector.serving.session import open_session
from detector.unknowns import UnknownMessageError, decode, encode
from detector.verdicts import Origin, build, fake_probabilities
from ingest.picture_hash import PICTURE_BYTES


def origin(offset):
    item = make_item(offset)
    return Origin(f"media-0-{offset}", item, Timings(decode_s=0.1, model_s=0.2))


def says(logits, unknown_score):
    rows = len(logits)
    ones = np.ones(rows, np.float32)
    return {
        "logits": np.array(logits, np.float32),
        "energy": ones * 2,
        "novelty": ones * 3,
        "unknown_score": np.array(unknown_score, np.float32),
        "neighbour_index": np.tile(np.arange(5), (rows, 1)),
        "neighbour_distance": np.tile(np.arange(5, dtype=np.float32), (rows, 1)),
    }


def verdicts(artifact, items, output):
    return build([origin(i) for i in range(len(items))], items, output, artifact)


def test_a_verdict_names_the_family_and_says_unknown_first(untrained_artifact):
    real, fake, unknown = verdicts(
        untrained_artifact, [make_decoded(1)] * 3, says([[4, 0, 0], [0, 1, 4], [0, 4, 1]], [0, 0, 9])
    )
    assert (real.label, real.family, real.family_probability) == ("real", None, None)
    assert (fake.label, fake.family) == ("fake", "upsampling")
    assert (unknown.label, unknown.family) == ("unknown", "blend")
    assert fake.family_probability == pytest.approx(np.exp(4) / (1 + np.exp(1) + np.exp(4)))
    assert fake.fake_probability == pytest.approx(1 - 1 / (1 + np.exp(1) + np.exp(4)))
    assert (unknown.id, unknown.item.offset) == ("media-0-2", 2)
    assert unknown.release == untrained_artifact.digest
    assert unknown.unknown_threshold == untrained_artifact.manifest.gate.unknown_threshold
    assert [neighbour.exemplar for neighbour in fake.neighbours] == [f"exemplar-{i}" for i in range(5)]


def test_a_verdict_says_what_of_the_file_was_looked_at(untrained_artifact):
    decoded = replace(make_decoded(1), frame_numbers=(3,), length=7, others=2, incomplete=True)
    (verdict,) = verdicts(untrained_artifact, [decoded], says([[4, 0, 0]], [0]))
    assert verdict.coverage.model_dump() == {"frames": 7, "judged": (3,), "others": 2, "incomplete": True}


def test_a_regions_scores_are_those_of_its_row(untrained_artifact):
    items = [make_decoded(2, ((0,), (1,))), make_decoded(1), make_decoded(1, ((0,),))]
    result = says([[4, 0, 0]] * 3 + [[0, 4, 0], [4, 0, 0], [0, 0, 4]], [0, 0, 0, 0, 1, 9])
    first, second, third = verdicts(untrained_artifact, items, result)
    assert [(region.label, region.family) for region in first.regions] == [("fake", "blend"), ("real", None)]
    assert second.regions == ()
    assert [(region.label, region.unknown_score) for region in third.regions] == [("unknown", 9.0)]


def test_a_video_and_its_frames_are_unknown_from_the_threshold_of_videos(untrained_artifact):
    gate = untrained_artifact.manifest.gate.model_copy(
        update={"unknown_threshold": 2.0, "video_unknown_threshold": 5.0}
    )
    manifest = untrained_artifact.manifest.model_copy(update={"gate": gate})
    video = replace(make_decoded(1, ((0,), (0,))), kind="video")
    said = says([[4, 0, 0]] * 6, [3, 3, 3, 6, 3, 3])
    picture, clip = verdicts(
        replace(untrained_artifact, manifest=manifest), [make_decoded(1, ((0,),)), video], said
    )
    assert (picture.label, picture.unknown_threshold) == ("unknown", 2)
    assert [region.label for region in picture.regions] == ["unknown"]
    assert (clip.label, clip.unknown_threshold) == ("real", 5)
    assert [region.label for region in clip.regions] == ["unknown", "real"]


def test_a_verdict_says_whose_thresholds_it_was_judged_by(untrained_artifact):
    own = SourceThresholds(groups=20, unknown_threshold=1, fake_threshold=0.25)
    gate = untrained_artifact.manifest.gate.model_copy(update={"sources": {"camera": own}})
    artifact = replace(
        untrained_artifact, manifest=untrained_artifact.manifest.model_copy(update={"gate": gate})
    )
    said = says([[4, 0, 0]] * 4, [1.5] * 4)
    named = [replace(origin(i), item=make_item(i, source=s)) for i, s in enumerate(["camera", ""])]
    judged, pooled = build(named, [make_decoded(1, ((0,),)), make_decoded(1, ((0,),))], said, artifact)
    assert (judged.label, judged.thresholds_of) == ("unknown", "camera")
    assert (judged.unknown_threshold, judged.fake_threshold) == (1, 0.25)
    assert [region.label for region in judged.regions] == ["unknown"]
    assert (pooled.label, pooled.thresholds_of) == ("real", None)
    assert (pooled.unknown_threshold, pooled.fake_threshold) == (gate.unknown_threshold, gate.fake_threshold)
    assert [region.label for region in pooled.regions] == ["real"]


def test_the_parts_of_an_unknown_score_sum_to_it_on_what_the_exported_graph_says(untrained_artifact):
    rng = np.random.default_rng(0)
    shown = [replace(make_decoded(4), crops=rng.integers(0, 256, (4, 64, 64, 3), np.uint8)) for _ in range(3)]
    request = request_for(shown, untrained_artifact.manifest.contract)
    judged = verdicts(untrained_artifact, shown, open_session(untrained_artifact, threads=1).score(request))
    terms = untrained_artifact.manifest.gate.terms
    for verdict in judged:
        assert verdict.unknown_parts.keys() == terms.keys()
        assert sum(verdict.unknown_parts.values()) == pytest.approx(verdict.unknown_score, abs=1e-3)
        energy = np.clip((verdict.energy - terms["energy"].median) / terms["energy"].scale, -4, 4)
        assert verdict.unknown_parts["energy"] == pytest.approx(terms["energy"].weight * energy, abs=1e-4)
        assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert len({str(verdict.unknown_parts) for verdict in judged}) == 3


def test_a_release_that_does_not_give_its_scores_says_nothing_of_their_parts(untrained_artifact):
    (verdict,) = verdicts(untrained_artifact, [make_decoded(1)], says([[4, 0, 0]], [0]))
    assert verdict.unknown_parts is None


def test_what_is_suspected_is_never_called_real(untrained_artifact):
    items = [make_decoded(1, ((0,),)), make_decoded(1)]
    said = says([[4, 1, 0], [0, 0, 4], [4, 0, 0]], [0, 0, 0])
    doubted, fake = build([origin(0), origin(1)], items, said, untrained_artifact, suspected=True)
    assert (doubted.label, doubted.family) == ("unknown", "blend")
    assert [region.label for region in doubted.regions] == ["real"]
    assert (fake.label, fake.family) == ("fake", "upsampling")


def test_fake_probability_is_what_is_not_real():
    logits = np.array([[0.0, 0.0], [1000.0, 0.0]], np.float32)
    np.testing.assert_allclose(fake_probabilities(logits), [0.5, 0.0])


@given(
    crops=st.integers(1, 40),
    size=st.sampled_from([64, 128, 224]),
    limit=st.integers(20_000, 900_000),
    version=st.sampled_from([None, "2"]),
    shown=st.sampled_from([None, 32, 224, 518]),
)
def test_a_message_keeps_its_limit_and_says_so(untrained_artifact, crops, size, limit, version, shown):
    (verdict,) = verdicts(untrained_artifact, [make_decoded(1)], says([[0, 4, 0]], [9]))
    sent = np.random.default_rng(0).integers(0, 256, (crops, size, size, 3), dtype=np.uint8)
    features, embedding = np.arange(300, dtype=np.float32), np.ones(128, np.float32)
    picture = None if shown is None else np.full((shown, shown, 3), 7, np.uint8)
    hashes = bytes(range(PICTURE_BYTES))
    data = encode(verdict, sent, features, embedding, version, limit, picture, hashes)
    assert len(data) <= limit
    got = decode(data)
    if got.picture is not None:
        np.testing.assert_array_equal(got.picture, picture)
        assert len(got.crops)
    elif picture is not None:
        assert picture.nbytes + sent[0].nbytes > limit - len(data) + got.crops.nbytes - 400
    assert got.verdict == verdict
    assert len(got.crops) + got.left_out == crops
    assert (got.feature_version, got.picture_hashes) == (version, hashes)
    np.testing.assert_array_equal(got.crops, sent[: len(got.crops)])
    np.testing.assert_array_equal(got.features, features)
    np.testing.assert_array_equal(got.embedding, embedding)
    # No crop is left out that would have fitted.
    assert got.left_out == 0 or len(data) + sent[0].nbytes > limit - 200


def test_a_message_that_cannot_fit_is_refused(untrained_artifact):
    (verdict,) = verdicts(untrained_artifact, [make_decoded(1)], says([[0, 4, 0]], [9]))
    row = np.zeros(300, np.float32)
    with pytest.raises(ValueError, match="without crops"):
        encode(verdict, np.zeros((1, 8, 8, 3), np.uint8), row, row, None, 500)


def test_bytes_that_are_no_message_are_refused(untrained_artifact):
    (verdict,) = verdicts(untrained_artifact, [make_decoded(1)], says([[0, 4, 0]], [9]))
    row = np.zeros(3, np.float32)
    data = encode(verdict, np.zeros((1, 8, 8, 3), np.uint8), row, row, "2")
    for damaged in (b"", data[:-1], data[:100], data.replace(b'"label', b'"lapel'), b"\0" * 8):
        with pytest.raises(UnknownMessageError):
            decode(damaged)
    wrong_shape = encode(verdict, np.zeros((1, 8, 8, 3), np.uint8), row[None], row, "2")
    with pytest.raises(UnknownMessageError, match="rows"):
        decode(wrong_shape)
    with pytest.raises(UnknownMessageError, match="S, S"):
        decode(encode(verdict, np.zeros((1, 8, 16, 3), np.uint8), row, row, "2"))
    for picture in (
        np.zeros((8, 8), np.uint8),
        np.zeros((0, 8, 3), np.uint8),
        np.zeros((8, 8, 3), np.float32),
    ):
        with pytest.raises(UnknownMessageError, match="H, W, 3"):
            decode(encode(verdict, np.zeros((1, 8, 8, 3), np.uint8), row, row, "2", picture=picture))
    with pytest.raises(UnknownMessageError, match="a picture"):
        decode(encode(verdict, np.zeros((1, 8, 8, 3), np.uint8), row, row, "2", picture_hashes=b"7"))


def test_a_message_of_before_pictures_were_hashed_is_taken(untrained_artifact):
    (verdict,) = verdicts(untrained_artifact, [make_decoded(1)], says([[0, 4, 0]], [9]))
    row = np.zeros(3, np.float32)
    arrays = {"crops": np.zeros((1, 8, 8, 3), np.uint8), "features": row, "embedding": row}
    before = save(arrays, {"verdict": verdict.model_dump_json(), "left_out": "0"})
    assert decode(before).picture_hashes == b""


def test_scores_are_finite_numbers_even_for_extreme_logits(untrained_artifact):
    result = says([[1e4, -1e4, 0]], [0])
    (verdict,) = verdicts(untrained_artifact, [make_decoded(1)], result)
    assert verdict.fake_probability == 0.0


SAID = {"ledger": "0" * 32, "epoch": 0, "sequence": 3, "stable": "a" * 64}


@pytest.mark.parametrize(
    "wrong",
    [
        {"stable": "/home/somebody"},
        {"stable": "../" + "a" * 61},
        {"stable": "A" * 64},
        {"stable": "a" * 64 + "\n"},
        {"stable": "a" * 63},
        {"canary": "/home/somebody"},
        {"previous": ""},
        {"ledger": "a" * 31},
        {"epoch": -1},
        {"sequence": -1},
        {"canary": "b" * 64, "canary_share": 1.5},
        {"canary": "b" * 64, "canary_share": float("nan")},
        {"canary_share": 0.5},
        {"shared_share": 0.5},
        {"canary": "b" * 64, "canary_share": 0.5, "shared_share": 0.25},
        {"retractions": [{"number": 0, "release": "b" * 64, "since_ms": 0}]},
    ],
)
def test_a_rollout_names_digests_and_nothing_else(wrong):
    Rollout.model_validate(SAID)
    with pytest.raises(ValidationError):
        Rollout.model_validate(SAID | wrong)


@pytest.mark.slow
@given(st.text())
def test_no_other_text_passes_for_a_digest(text):
    with pytest.raises(ValidationError):
        Rollout.model_validate(SAID | {"stable": text})


def test_a_record_of_a_version_without_ledger_ids_is_no_rollout():
    earlier = {"slot": "stable", "stable": "a" * 64, "previous": None, "sequence": 3}
    with pytest.raises(ValidationError, match="ledger"):
        Rollout.model_validate_json(json.dumps(earlier))


def test_a_rollout_survives_the_topic():
    rollout = Rollout.model_validate(
        SAID
        | {
            "canary": "b" * 64,
            "canary_share": 0.1,
            "shared_share": 0.25,
            "previous": "c" * 64,
            "retractions": [{"number": 7, "release": "d" * 64, "since_ms": 1}],
        }
    )
    assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout
