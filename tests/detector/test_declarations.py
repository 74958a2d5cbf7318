"""The weight of a file's statements about its origin: they make it fake or unknown, and never real."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from verdicts import make_decoded, make_item

from detector import metrics
from detector.records import Label, Timings, Verdict
from detector.release.manifest import ProvenancePolicy, apply_policy, read_manifest
from detector.second_pass.scan_look import StretchLook
from detector.verdicts import ItemEvidence, JudgedItem, Origin, build
from ingest.records import Declaration, Metadata, Provenance, ProvenanceState

EVIDENCE = ProvenancePolicy(unsigned="evidence")
GENERATED, EDITED = "declared:generated", "declared:edited"


@pytest.mark.parametrize("pixels", get_args(Label))
@pytest.mark.parametrize(
    ("state", "signed", "unsigned", "family", "family_as_evidence"),
    [
        ("valid_trusted", "generated", None, GENERATED, GENERATED),
        ("valid_trusted", "edited_with_ai", "generated", EDITED, EDITED),
        ("valid_trusted", "captured", "generated", GENERATED, None),
        ("valid_trusted", "composite", "other", None, None),
        ("valid_trusted", "captured", None, None, None),
        ("valid_untrusted", "generated", None, GENERATED, None),
        ("valid_untrusted", "captured", "edited_with_ai", EDITED, None),
        ("invalid", "generated", None, None, None),
        ("invalid", None, "generated", GENERATED, None),
        ("none", None, "generated", GENERATED, None),
        ("none", None, "captured", None, None),
        *((state, None, None, None, None) for state in get_args(ProvenanceState)),
    ],
)
def test_a_declaration_makes_a_label_by_the_policy(
    state, signed, unsigned, family, family_as_evidence, pixels
):
    provenance = Provenance(state=state, declares=signed, metadata=Metadata(declares=unsigned))
    for policy, declared in ((ProvenancePolicy(), family), (EVIDENCE, family_as_evidence)):
        expected = {}
        if declared:
            expected = {"label": "fake", "family": declared, "family_probability": None}
            expected["pixel_label"] = None if pixels == "fake" else pixels
        elif state == "invalid" and pixels == "real":
            expected = {"label": "unknown", "pixel_label": "real"}
        assert apply_policy(provenance, policy, pixels) == expected


@given(
    st.sampled_from(get_args(ProvenanceState)),
    *[st.sampled_from([None, *get_args(Declaration)])] * 2,
    st.sampled_from([ProvenancePolicy(), EVIDENCE]),
    st.sampled_from(get_args(Label)),
)
def test_no_statement_makes_an_item_real(state, signed, unsigned, policy, pixels):
    provenance = Provenance(state=state, declares=signed, metadata=Metadata(declares=unsigned))
    label = apply_policy(provenance, policy, pixels).get("label", pixels)
    assert label != "real" or pixels == "real"


TRUSTED = Provenance(state="valid_trusted", declares="generated", signer="Ada")


def judged(artifact, provenance, logits):
    output = {
        "logits": np.array([logits], np.float32),
        **dict.fromkeys(("energy", "novelty", "unknown_score"), np.zeros(1, np.float32)),
        "neighbour_index": np.tile(np.arange(5), (1, 1)),
        "neighbour_distance": np.ones((1, 5), np.float32),
    }
    origin = Origin("media-0-0", make_item(), Timings(decode_s=0, model_s=0))
    (verdict,) = build([origin], [replace(make_decoded(1), provenance=provenance)], output, artifact)
    return verdict


def test_a_declared_fake_keeps_what_its_pixels_say(untrained_artifact):
    real, declared = (judged(untrained_artifact, p, [4, 0, 0]) for p in (Provenance(), TRUSTED))
    changes = {"label": "fake", "pixel_label": "real", "family": GENERATED, "provenance": TRUSTED}
    assert declared == real.model_copy(update=changes)
    assert Verdict.model_validate_json(declared.model_dump_json()) == declared


def test_a_policy_is_the_releases_and_an_older_release_has_the_default(untrained_artifact):
    manifest = untrained_artifact.manifest
    unsigned = TRUSTED.model_copy(update={"state": "valid_untrusted"})
    strict = replace(untrained_artifact, manifest=manifest.model_copy(update={"provenance": EVIDENCE}))
    assert judged(strict, unsigned, [4, 0, 0]).label == "real"
    older = read_manifest(manifest.model_dump_json(exclude={"provenance"}).encode())
    assert judged(replace(untrained_artifact, manifest=older), unsigned, [4, 0, 0]).label == "fake"


def test_no_second_look_at_a_stretch_undoes_a_declaration(untrained_artifact):
    verdict = judged(untrained_artifact, TRUSTED, [4, 0, 0])
    empty = np.zeros(0, np.float32)
    item = JudgedItem(
        verdict.model_copy(update={"segments": ({},)}), ItemEvidence(make_decoded(1), empty, empty), bytes
    )
    look = StretchLook(untrained_artifact, lambda _: {})
    assert not look.looks_at(item)
    real = replace(item, verdict=item.verdict.model_copy(update={"label": "real"}))
    assert look.looks_at(real)


def test_statements_are_counted_and_a_source_whose_invalid_credentials_jump_is_named():
    def sample(name, **labels):
        return REGISTRY.get_sample_value(f"forgewatch_detector_{name}", labels)

    def send(source, invalid, of):
        for number in range(of):
            metrics.count_provenance(claims if number % of < invalid else TRUSTED, source)

    claims = Provenance(state="invalid", metadata=Metadata(declares="generated"))
    before = sample("provenance_total", state="invalid", declares="generated")
    with capture_logs() as lines:
        for _ in range(10):
            send("always half", 20, 40)
            send("shop", 2, 40)
            send("camera", 0, 40)
        send("new", 40, 40)
        send("shop", 8, 40)
        assert sample("invalid_credentials_rise") == 0
        assert sample("provenance_total", state="invalid", declares="generated") - before == 268
        send("shop", 20, 40)
        rise = sample("invalid_credentials_rise")
        assert 0.05 < rise < 0.45
        for _ in range(40):
            send("shop", 20, 40)
    assert sample("invalid_credentials_rise") == rise  # it is no new measure, however long it lasts
    assert [line["source"] for line in lines] == ["shop"]
    send("shop", 2, 40)
    assert sample("invalid_credentials_rise") == 0
    send("camera", 7, 40)
    assert sample("invalid_credentials_rise") > 0
