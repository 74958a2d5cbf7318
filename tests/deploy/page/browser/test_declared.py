"""A cluster of signed media of four formats: the browser shows their claims, and one click names them."""

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from credentials import TRAINED, action, signed, signer
from media import grey_clip, photo
from playwright.sync_api import expect
from verdicts import make_item, make_verdict

from detector.release.manifest import ProvenancePolicy, apply_policy
from ingest.records import CropPlan, MediaPlan
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from memory.declarations import declaration_of
from memory.rows import exemplars_of

pytestmark = pytest.mark.slow

PLAN = MediaPlan(crops=CropPlan(patches=1, face_patches=0, frames=2))
PICTURES = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}


def test_one_click_names_what_signed_files_of_four_formats_declare_and_the_others_stay(
    open_page, served, services, fill
):
    media = {kind: photo(96, container) for kind, container in PICTURES.items()} | {"video/mp4": grey_clip()}
    created = action("created", TRAINED, softwareAgent="Model X")
    with Sandbox(IngestSettings(), lambda: signer().anchor) as sandbox:
        files = [signed(data, kind, created) for kind, data in media.items()] + [*media.values()][1:]
        read = [sandbox.submit(file, PLAN).result(60).provenance for file in files]
    changes = [{"provenance": found} | apply_policy(found, ProvenancePolicy(), "unknown") for found in read]
    verdicts = [make_verdict(make_item(number), **changed) for number, changed in enumerate(changes)]
    ids = fill("mixed", len(files), declared=[declaration_of(verdict) for verdict in verdicts])
    window = open_page()
    window.goto("/page/clusters/mixed")
    expect(window.locator("#declared")).to_contain_text("4 of 7 declare a generative model (Model X 4)")
    expect(window.get_by_label("Call the 4 that declare it")).to_have_value("model-x")
    window.get_by_role("button", name="Label those").click()
    expect(window.get_by_role("heading", level=1)).to_contain_text("3 items")
    expect(window.locator("#declared")).to_have_count(0)
    with services.memory.read() as connection:
        assert [one.family for one in exemplars_of(connection, ids)] == ["model-x"] * 4 + [None] * 3
