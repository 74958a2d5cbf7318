import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import dead_letters, envelope
from ingest.dead_letters import PREFIX, REPLAY_COUNT, REPLAY_OF, ReplayError, build_replay, dead_letter
from ingest.envelope import EnvelopeError, fetch_claim
from ingest.records import InRecord, MediaError
from ingest.settings import IngestSettings


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a photo.jpg").write_bytes(b"media")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside" / "file").write_bytes(b"secret")
    return folder


def reason(dataref, root, limit=100):
    with pytest.raises(EnvelopeError) as error:
        fetch_claim(dataref, root, limit)
    return error.value.reason


def test_a_file_below_the_root_is_read(root):
    assert fetch_claim(f"file://{root}/sub/a%20photo.jpg", root, 5) == b"media"
    assert fetch_claim(f"file://localhost{root}/sub/a%20photo.jpg", root, 5) == b"media"
    (root / os.fsdecode(b"\xff")).write_bytes(b"media")  # a name need not be UTF-8
    assert fetch_claim(f"file://{root}/%ff", root, 5) == b"media"


def test_without_a_root_everything_is_refused(root):
    assert reason(f"file://{root}/sub/a%20photo.jpg", None) == "dataref_refused"


@pytest.mark.parametrize(
    "dataref",
    [
        "file://{root}/../secret",
        "file://{root}/%2e%2e/secret",
        "file://{root}/%2E%2E%2Fsecret",
        "file://{root}/sub/..%2f..%2fsecret",
        "file://{root}-beside/file",
        "file:///etc/passwd",
        "file://elsewhere{root}/sub/a%20photo.jpg",
        "file://{root}/sub/a%20photo.jpg?x=1",
        "file://{root}/sub/a%00photo.jpg",
        "file:sub/a%20photo.jpg",
        "{root}/sub/a%20photo.jpg",
        "http://127.0.0.1/a.jpg",
        "https://127.0.0.1/a.jpg",
        "ftp://127.0.0.1/a.jpg",
        "s3://bucket/a.jpg",
        "file://[bad",
        "",
    ],
)
def test_what_is_not_a_file_url_below_the_root_is_refused(dataref, root):
    assert reason(dataref.format(root=root), root) == "dataref_refused"


def test_a_link_out_of_the_root_is_refused_and_one_inside_is_followed(root):
    (root / "out").symlink_to(root.parent / "secret")
    (root / "folder").symlink_to(root.parent)
    (root / "in").symlink_to(root / "sub" / "a photo.jpg")
    assert reason(f"file://{root}/out", root) == "dataref_refused"
    assert reason(f"file://{root}/folder/secret", root) == "dataref_refused"
    assert fetch_claim(f"file://{root}/in", root, 5) == b"media"


def test_a_link_to_itself_is_refused(root):
    (root / "loop").symlink_to(root / "loop")
    assert reason(f"file://{root}/loop", root) in ("dataref_refused", "dataref_missing")


def test_a_pipe_a_folder_and_a_device_are_refused_without_waiting(root):
    os.mkfifo(root / "pipe")
    assert reason(f"file://{root}/pipe", root) == "dataref_refused"
    assert reason(f"file://{root}/sub", root) == "dataref_refused"
    assert reason("file:///dev/zero", Path("/dev")) == "dataref_refused"


def test_a_missing_file_is_missing(root):
    assert reason(f"file://{root}/none", root) == "dataref_missing"
    assert reason(f"file://{root}/sub/a%20photo.jpg/none", root) in ("dataref_refused", "dataref_missing")


def test_a_file_over_the_limit_is_refused_by_its_size_alone(root):
    with (root / "big").open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would fill the memory
    assert reason(f"file://{root}/big", root) == "too_large"
    assert reason(f"file://{root}/sub/a%20photo.jpg", root, 4) == "too_large"


@pytest.mark.parametrize("name", ["\ud800", "a\udcff", "\0", "%00", "x" * 300, "y/" * 3000])
def test_a_path_that_no_file_system_has_is_refused_or_missing(name, root):
    assert reason(f"file://{root}/{name}", root) in ("dataref_refused", "dataref_missing")


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(root, monkeypatch):
    growing = root / "growing"
    growing.write_bytes(b"1234")
    real = os.fstat

    def grow_after(descriptor):
        status = real(descriptor)
        growing.write_bytes(b"x" * 1_000_000)
        return status

    monkeypatch.setattr(os, "fstat", grow_after)
    assert reason(f"file://{root}/growing", root, 100) == "too_large"


TRIES = 4_000
# `sub` is by turns a folder and a link to the folder outside: each exchange is one system call.
SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
here, link = (os.fsencode(path) for path in sys.argv[1:])
while True:
    if libc.renameat2(-100, here, -100, link, 2):
        sys.exit(os.strerror(ctypes.get_errno()))
"""


@pytest.fixture
def swapping(tmp_path):
    """A root whose folder `sub` becomes a link out of the root and a folder again, all the time."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder, text in ((root / "sub", "inside"), (outside, "secret")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    (root / "link").symlink_to(outside)
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, str(root / "sub"), str(root / "link")])
    yield root
    assert swapping.poll() is None, "the exchange does not work here"
    swapping.kill()
    swapping.wait()


@pytest.mark.slow
def test_no_race_leads_out_of_the_root(swapping):
    assert fetched(swapping, lambda said: said.count("inside") > 100 and len(said) > TRIES) == {
        "inside",
        "dataref_refused",
    }


def test_without_the_walk_the_race_is_won(swapping, monkeypatch):
    def open_by_path(top, parts):
        return os.open(top.joinpath(*parts), os.O_RDONLY | os.O_NOFOLLOW)

    monkeypatch.setattr(envelope, "_open_below", open_by_path)
    assert "secret" in fetched(swapping, lambda said: "secret" in said)


def fetched(root, enough):
    """What fetching the file again and again gives or is refused for, until that is enough."""
    said = []
    deadline = time.monotonic() + 180
    while not enough(said):
        assert time.monotonic() < deadline, f"{len(said)} tries gave {set(said)}"
        for _ in range(100):
            try:
                said.append(fetch_claim(f"file://{root}/sub/file", root, 100).decode())
            except EnvelopeError as error:
                said.append(error.reason)
    return set(said)


SETTINGS = IngestSettings()


def letter_of(key, value, headers, offset=5):
    """A dead letter as it is read again."""
    record = InRecord("media", 3, 14, 0, key, value, tuple(headers))
    letter = dead_letter(record, "decode", MediaError("damaged", "no picture"), SETTINGS)
    return InRecord(SETTINGS.dead_letters_topic, 1, offset, 0, letter.key, letter.value, letter.headers)


optional = st.none() | st.binary(max_size=50)
names = st.text(max_size=9)


@given(optional, optional, st.lists(st.tuples(names, st.binary(max_size=9))), st.integers(1, 4))
def test_however_often_it_fails_a_record_is_replayed_as_it_came_and_counted(key, value, headers, times):
    letter = letter_of(key, value, headers)
    for count in range(1, times + 1):
        again = build_replay(letter, letter)
        assert (again.topic, again.key, again.value) == ("media", key, value)
        marks = [(REPLAY_OF, letter.id.encode()), (REPLAY_COUNT, str(count).encode())]
        assert list(again.headers) == headers + marks
        letter = letter_of(again.key, again.value, list(again.headers), offset=5 + count)
        assert dead_letters.replay_count(letter) == count


@pytest.mark.parametrize("said", [b"", b"-1", b"1e9", b"99999", "²".encode(), b"\xff"])
def test_a_count_that_a_producer_made_up_is_none(said):
    assert dead_letters.replay_count(letter_of(b"k", b"v", [(REPLAY_COUNT, said)])) == 0


def test_a_letter_that_was_too_large_to_be_whole_says_so_and_where_the_original_lies():
    assert not dead_letters.is_cut(letter_of(b"k", b"v", []))
    large = letter_of(b"k", b"v" * (SETTINGS.max_record_bytes + 1), [])
    assert dead_letters.is_cut(large)
    assert dead_letters.origin(large) == ("media", 3, 14)
    original = InRecord("media", 3, 14, 0, b"k", b"all of it", (("a", None),))
    again = build_replay(large, original)
    assert (again.value, again.headers[0]) == (b"all of it", ("a", b""))


def test_a_producer_s_own_errors_are_not_replayed():
    large = letter_of(b"k", b"v" * (SETTINGS.max_record_bytes + 1), [])
    forged = ((f"{PREFIX}topic", b"other"), ("a", b"b"), (f"{PREFIX}offset".upper(), b"0"))
    again = build_replay(large, InRecord("media", 3, 14, 0, b"k", b"all of it", forged))
    assert (again.topic, again.headers[0]) == ("media", ("a", b"b"))
    assert [name for name, _ in again.headers if name.lower().startswith(PREFIX)] == []


@pytest.mark.parametrize("headers", [[], [(f"{PREFIX}topic", b"media"), (f"{PREFIX}partition", b"x")]])
def test_what_is_no_dead_letter_of_ours_is_refused(headers):
    stranger = InRecord(SETTINGS.dead_letters_topic, 0, 0, 0, None, b"v", tuple(headers))
    with pytest.raises(ReplayError, match="does not say where it came from"):
        build_replay(stranger, stranger)
