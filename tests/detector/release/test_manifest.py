import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from detector.release.artifact import MANIFEST
from detector.release.manifest import (
    FORMAT,
    DamagedArtifactError,
    FirstSight,
    GateParameters,
    SourceThresholds,
    Term,
    UnknownFormatError,
    decide,
    read_manifest,
)


def test_a_release_is_written_in_one_format(untrained_artifact, localized_artifact, scanned_artifact):
    for artifact in (untrained_artifact, localized_artifact, scanned_artifact):
        data = (artifact.folder / MANIFEST).read_bytes()
        assert json.loads(data)["format"] == FORMAT
        assert read_manifest(data) == artifact.manifest
    gate = scanned_artifact.manifest.gate.model_copy(update={"video_unknown_threshold": 12.5})
    other = scanned_artifact.manifest.model_copy(update={"gate": gate, "localizer": None})
    assert read_manifest(other.model_dump_json().encode()) == other


SCANNER = {"crop_px": 64, "threshold": 0.3, "reals_told": 0, "reals": 9, "export_difference": 0}
LOCALIZER = {"crop_px": 64, "threshold": 0.3, "reals_marked": 0, "reals": 9, "export_difference": 0}
OF_FRAMES = [("frames", 97), ("frames", 0), ("n", 1)]
NO_SCANNER = [("crop_px", 60), ("crop_px", 24), ("threshold", 0), ("reals", 0), *OF_FRAMES]
NO_LOCALIZER = [("crop_px", 60), ("cell_px", 16), ("threshold", 0), ("reals", 0), ("more", 1)]


@pytest.mark.parametrize(
    ("part", "declared", "shape", "field", "value"),
    [
        *(("scanner", SCANNER, ("rows",), *wrong) for wrong in NO_SCANNER),
        *(("localizer", LOCALIZER, ("rows", 8, 8), *wrong) for wrong in NO_LOCALIZER),
    ],
)
def test_a_further_graph_that_cannot_be_is_refused(untrained_artifact, part, declared, shape, field, value):
    fields = untrained_artifact.manifest.model_dump(mode="json")
    held = getattr(read_manifest(json.dumps(fields | {part: declared}).encode()), part)
    assert held.outputs[0].shape == shape
    assert part == "localizer" or held.frames == 96
    with pytest.raises(DamagedArtifactError):
        read_manifest(json.dumps(fields | {part: declared | {field: value}}).encode())


@pytest.mark.parametrize(
    ("number", "advice"),
    [*((n, "make the release anew") for n in range(FORMAT)), (FORMAT + 1, "upgrade"), ("7", "upgrade")],
)
def test_another_format_is_refused_by_its_number_in_one_line(untrained_artifact, number, advice):
    fields = untrained_artifact.manifest.model_dump(mode="json") | {"format": number}
    with pytest.raises(UnknownFormatError) as refused:
        read_manifest(json.dumps(fields).encode())
    assert f"format is {number!r}, this version reads {FORMAT}: {advice}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", json.dumps({"format": FORMAT}).encode()])
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(DamagedArtifactError):
        read_manifest(data)


def test_logits_that_are_not_of_the_classes_are_refused(untrained_artifact):
    fields = untrained_artifact.manifest.model_dump(mode="json") | {"classes": ["real", "blend"]}
    with pytest.raises(DamagedArtifactError, match="no logits of 2 classes"):
        read_manifest(json.dumps(fields).encode())


GATE = GateParameters(
    terms={name: Term(median=0, scale=1, weight=2) for name in ("energy", "novelty")},
    clip=6,
    unknown_threshold=4,
    fake_threshold=0.6,
)


@pytest.mark.parametrize(
    ("unknown_score", "fake_probability", "label"),
    [
        (4.1, 0.0, "unknown"),
        (4.1, 1.0, "unknown"),
        (4.0, 0.61, "fake"),
        (4.0, 0.6, "real"),
        (-9, 0.0, "real"),
    ],
)
def test_unknown_comes_before_fake_and_no_threshold_is_above_itself(unknown_score, fake_probability, label):
    assert decide(unknown_score, fake_probability, GATE) == label


def test_videos_are_unknown_from_a_threshold_of_their_own_where_there_is_one():
    own = GATE.model_copy(update={"video_unknown_threshold": 9.0})
    for gate, above in ((GATE, 4.0), (own, 9.0)):
        assert gate.unknown_above(video=True) == above
        assert decide(above + 0.1, 0.0, gate, video=True) == "unknown"
        assert decide(above, 0.0, gate, video=True) == "real"
        assert decide(4.1, 0.0, gate) == "unknown"


def test_a_video_that_is_less_familiar_than_a_picture_may_be_is_not_called_fake():
    own = GATE.model_copy(update={"video_unknown_threshold": 9.0})
    assert decide(4.0, 1.0, own, video=True) == "fake"
    assert decide(4.1, 1.0, own, video=True) == "unknown"
    assert decide(4.1, 0.0, own, video=True) == "real"


@pytest.mark.parametrize(
    ("unknown_score", "fake_probability", "known", "new"),
    [
        (9, 0.0, "unknown", "real"),
        (9, 0.9, "unknown", "unknown"),
        (0, 0.7, "fake", "real"),
        (0, 0.9, "fake", "fake"),
    ],
)
def test_at_first_sight_novelty_calls_nothing_unknown(unknown_score, fake_probability, known, new):
    gate = GATE.model_copy(update={"first_sight": FirstSight(fake_threshold=0.8, sources=("camera",))})
    assert decide(unknown_score, fake_probability, gate, source="camera") == known
    assert decide(unknown_score, fake_probability, gate, source="stranger") == new


STRICT = SourceThresholds(groups=20, unknown_threshold=1, fake_threshold=0.2)
OWN = GATE.model_copy(update={"sources": {"camera": STRICT}})
FINITE = st.floats(-20, 20)


@given(FINITE, st.floats(0, 1), st.booleans(), st.sampled_from(["", "other", "Camera", "camera "]))
def test_an_item_of_a_source_without_its_own_thresholds_is_judged_as_if_no_source_had_any(
    unknown_score, fake_probability, video, source
):
    without = decide(unknown_score, fake_probability, GATE, video=video)
    assert decide(unknown_score, fake_probability, OWN, video=video, source=source) == without
    assert decide(unknown_score, fake_probability, OWN, video=video) == without


@given(FINITE, st.floats(0, 1))
def test_a_sources_own_thresholds_take_the_place_of_the_pooled_ones(unknown_score, fake_probability):
    pooled = GATE.model_copy(
        update={"unknown_threshold": STRICT.unknown_threshold, "fake_threshold": STRICT.fake_threshold}
    )
    expected = decide(unknown_score, fake_probability, pooled)
    assert decide(unknown_score, fake_probability, OWN, source="camera") == expected


def test_a_sources_videos_are_unknown_no_sooner_than_all_videos():
    own = OWN.model_copy(update={"video_unknown_threshold": 9.0})
    assert decide(8.0, 0.0, own, video=True, source="camera") == "real"
    assert decide(8.0, 1.0, own, video=True, source="camera") == "unknown"
    lenient = STRICT.model_copy(update={"unknown_threshold": 12.0})
    own = own.model_copy(update={"sources": {"camera": lenient}})
    assert decide(11.0, 0.0, own, video=True, source="camera") == "real"
    assert decide(11.0, 0.0, own, video=True) == "unknown"


@pytest.mark.parametrize("unknown", ["sources", "surroundings"])
def test_a_gate_of_before_there_were_sources_or_surroundings_has_none(unknown):
    older = {name: value for name, value in GATE.model_dump().items() if name != unknown}
    assert GateParameters.model_validate(older) == GATE
    assert not getattr(GATE, unknown)


@pytest.mark.parametrize("gate", [GATE, OWN])
def test_a_gate_survives_its_manifest(gate):
    read = GateParameters.model_validate_json(gate.model_dump_json())
    assert read == gate
    assert list(read.terms) == list(gate.terms)


@pytest.mark.parametrize(
    "broken",
    [
        {"clip": 0},
        {"unknown_threshold": math.nan},
        {"video_unknown_threshold": 3.9},
        {"fake_threshold": 1.5},
        {"sources": {"camera": STRICT.model_dump() | {"fake_threshold": 1.5}}},
        {"terms": {}},
        {"terms": {"energy": {"median": 0, "scale": 1, "weight": 0}}},
        {"terms": {"energy": {"median": 0, "scale": 1, "weight": -1}}},
        {"terms": {"energy": {"median": 0, "scale": 0, "weight": 1}}},
        {"energy": {"median": 0, "scale": 1}},
    ],
)
def test_a_gate_that_cannot_decide_is_refused(broken):
    with pytest.raises(ValidationError):
        GateParameters.model_validate(GATE.model_dump() | broken)
