"""Tasks hold what a person needs to see, and say where they are from."""

import base64
from datetime import UTC, datetime
from xml.etree import ElementTree

from deploy.labelstudio.tasks import configuration, task
from memory.records import Exemplar

EXEMPLAR = Exemplar(
    id="media-0-1",
    media_digest="0" * 64,
    crops_digest="1" * 64,
    source='<b>"camera"</b>',
    group="g",
    shelf="unknown",
    family=None,
    split=None,
    release="a" * 64,
    unknown_score=4.2,
    received_at=datetime(2026, 1, 1, tzinfo=UTC),
)
CONFIGURATION = configuration(["gan", "blend"])
TASK = task(EXEMPLAR, "c1", b"\x89PNG", "f" * 32, "gan")


def test_the_configuration_offers_every_family_real_a_new_one_and_to_ignore() -> None:
    root = ElementTree.fromstring(CONFIGURATION)
    assert [choice.get("value") for choice in root.iter("Choice")] == [
        "real",
        "blend",
        "gan",
        "new family",
        "ignore",
    ]


def test_a_task_holds_its_picture_and_what_is_known_and_a_prediction_where_there_is_one() -> None:
    kind, _, content = TASK["data"]["image"].partition(",")
    assert (kind, base64.b64decode(content)) == ("data:image/png;base64", b"\x89PNG")
    assert (TASK["data"]["exemplar"], TASK["data"]["project"]) == ("media-0-1", "f" * 32)
    assert TASK["predictions"][0]["model_version"] == "a" * 12
    assert "predictions" not in task(EXEMPLAR, "c1", b"", "f", None)
