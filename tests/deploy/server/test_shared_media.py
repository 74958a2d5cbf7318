"""Pictures of shared items: what is read again at their positions, decoded in the sandbox."""

import io

import numpy as np
import pytest
from kafka.errors import KafkaConnectionError
from PIL import Image

from deploy.page.verdicts import _WHOLE_PX
from deploy.server import pictures
from deploy.server.pictures import NoPictureError, SharedMedia
from ingest.settings import IngestSettings


def png(width, height):
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 40, 40)).save(out, "PNG")
    return out.getvalue()


class Topic:
    """What a topic still has, by offset; counts how often a reader was opened."""

    def __init__(self, media):
        self.kept, self.opened, self.answers = media, 0, True

    def __call__(self, _):
        self.opened += 1
        if not self.answers:
            raise KafkaConnectionError()
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def media(self, places):
        yield from ((place, self.kept[place.offset]) for place in places if place.offset in self.kept)


@pytest.fixture
def topic(monkeypatch):
    made = Topic({3: png(80, 40), 4: b"no picture"})
    monkeypatch.setattr(pictures, "MediaReader", made)
    return made


@pytest.fixture
def media(topic):
    opened = SharedMedia(IngestSettings())
    yield opened
    opened.close()


def test_an_item_is_shown_whole_by_its_position(media, topic):
    shown = media.picture("forgewatch.media-0-3", "0" * 64)
    assert shown.shape == (192, 384, 3)
    assert np.abs(shown.astype(int) - (200, 40, 40)).max() < 3
    assert media.picture("forgewatch.media-0-3", "0" * 64, _WHOLE_PX).shape == (512, 1024, 3)
    with pytest.raises(NoPictureError, match="no longer has it"):
        media.picture("forgewatch.media-0-5", "0" * 64)
    with pytest.raises(NoPictureError, match="cannot be decoded"):
        media.picture("forgewatch.media-0-4", "0" * 64)
    assert topic.opened == 1


def test_an_id_that_is_no_position_is_told_without_a_broker(media, topic):
    for item in ("forgewatch.media-x-y", "x"):
        with pytest.raises(NoPictureError, match="no position"):
            media.picture(item, "0" * 64)
    assert topic.opened == 0


def test_a_broker_that_does_not_answer_is_not_asked_for_each_picture(media, topic, monkeypatch):
    topic.answers = False
    monkeypatch.setattr(pictures, "Sandbox", Topic({}))
    for _ in range(3):
        with pytest.raises(NoPictureError, match="cannot be read now"):
            media.picture("forgewatch.media-0-3", "0" * 64)
    assert topic.opened == 1
