"""The archive of an import may be anybody's: it is read once, forwards, or refused."""

import io
import tarfile
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaConnectionError
from PIL import Image

from deploy.server import memory, pictures
from deploy.server.memory import ArchiveError, files_of
from deploy.server.pictures import NoPictureError, SharedMedia
from ingest.settings import IngestSettings
from memory import acts

END = bytes(1024)


def header(name, size, kind=tarfile.REGTYPE):
    member = tarfile.TarInfo(name)
    member.type = kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if 0 <= size < 8**11:
        block[124:136] = b"%011o\0" % size
    else:  # GNU's base 256, which has a sign
        block[124:136] = bytes([0x80 if size > 0 else 0xFF]) + (size % 256**11).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(size, name="gan/a.png"):
    """A file of no bytes to which an extended header gives another size."""
    record = b" size=%d\n" % size
    length = next(n for n in range(100) if n == len(record) + len(str(n)))
    record = str(length).encode() + record
    return header("x", len(record), tarfile.XHDTYPE) + record.ljust(512, b"\0") + header(name, 0)


def archive(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            opened.addfile(member, io.BytesIO(data))
    return out.getvalue()


def refused(data):
    with pytest.raises(ArchiveError) as error:
        files_of(io.BytesIO(data))
    return str(error.value)


# Back from behind its own header to the second member: tarfile ends where it is led to the first.
LOOP = header("gan/0.png", 0) * 19 + extended(-512 * 21) + END


def test_an_archive_that_leads_back_is_refused():
    assert len(LOOP) < 13_000
    assert "lies before" in refused(LOOP)
    assert "has -512 bytes" in refused(header("gan/0.png", 0) + header("gan/a.png", -512) + END)


def test_control_tarfile_alone_reads_it_without_end():
    with tarfile.open(fileobj=io.BytesIO(LOOP), mode="r:") as opened:
        assert len(list(islice(opened, 10_000))) == 10_000


@pytest.mark.parametrize("size", [2**40, 8**11 - 1])
def test_what_is_larger_than_its_archive_is_refused(size):
    for data in (header("gan/a.png", size), extended(size), header("x", size, tarfile.XGLTYPE)):
        refused(data + END)


def test_a_name_without_end_is_refused_before_it_is_read():
    assert "a header of" in refused(header("x", 2**17, tarfile.GNUTYPE_LONGNAME) + bytes(2**17) + END)


def test_headers_about_headers_without_end_are_refused():
    longer = header("x", 512, tarfile.GNUTYPE_LONGNAME) + b"gan/a.png".ljust(512, b"\0")
    refused(longer * 5000 + header("gan/a.png", 0) + END)


def test_members_are_counted_folders_too(monkeypatch):
    monkeypatch.setattr(memory, "MAX_MEMBERS", 3)
    folder = header("gan", 0, tarfile.DIRTYPE)
    assert len(files_of(io.BytesIO(folder + header("gan/a.png", 0) * 2 + END))) == 2
    assert "more than 3 members" in refused(folder * 2 + header("gan/a.png", 0) * 2 + END)


NAMES = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), min_size=1, max_size=200
)


@given(st.dictionaries(NAMES.map("gan/{}".format), st.binary(max_size=2000), min_size=1, max_size=8))
def test_what_a_client_packs_is_read_as_it_was(files):
    assert {file.path: file.data for file in files_of(io.BytesIO(archive(files)))} == files


@given(st.data())
def test_whatever_bytes_change_no_more_is_read_than_there_is(data):
    whole = bytearray(archive({"gan/a.png": b"a" * 700, "gan/b.png": b"b" * 20}) + extended(3))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)):
        whole[place] = data.draw(st.integers(0, 255))
    try:
        files = files_of(io.BytesIO(bytes(whole)))
    except ArchiveError:
        return
    assert sum(len(file.data) for file in files) <= len(whole)


# Pictures of shared items: what is read again at their positions, decoded in the sandbox.
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


# The API on the record: what people do in every room stands in one list.
def test_acts_of_all_rooms_stand_in_one_list_the_newest_first(http, services, make_artifact, propose):
    artifact = make_artifact()
    propose(artifact)
    with services.memory.write() as connection:
        acts.append(connection, "bo", "label", "label 1", {"what": "gan"})
    http.post("/updates")
    entries = http.get("/record").json()
    # A label came from another database, and is on record by the next look at the latest.
    assert [(e["actor"], e["action"]) for e in entries] == [
        ("bo", "label"),
        ("ada", "request update"),
        ("ada", "propose"),
    ]
    assert entries[0]["details"] == {"what": "gan"}
    assert entries[2]["subject"] == artifact.digest


def test_the_record_is_read_in_pages_and_by_who_what_and_when(http):
    for _ in range(5):
        http.post("/updates")
    first = http.get("/record", params={"limit": 2}).json()
    second = http.get("/record", params={"limit": 2, "before": first[-1]["sequence"]}).json()
    assert [e["sequence"] for e in first + second] == [5, 4, 3, 2]
    assert http.get("/record", params={"actor": "bo"}).json() == []
    assert (
        len(http.get("/record", params={"action": "request update", "since": "2026-01-01T00:00:00Z"}).json())
        == 5
    )
    assert http.get("/record", params={"since": "2999-01-01T00:00:00+02:00"}).json() == []
    for wrong in ({"limit": 0}, {"limit": 1001}, {"since": "yesterday"}, {"before": 0}):
        assert http.get("/record", params=wrong).status_code == 422
