"""The archive of an import may be anybody's: it is read once, forwards, or refused."""

import io
import tarfile
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.server import memory
from deploy.server.memory import ArchiveError, files_of

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
