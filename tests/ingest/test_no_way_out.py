"""Bar M3: whatever a dataref names, nothing is connected to, and nothing outside the root is opened."""

import itertools
import os
import random
import socket
import string
import sys
import threading
from urllib.parse import quote

import pytest

from ingest import envelope
from ingest.envelope import EnvelopeError, fetch_claim

pytestmark = [pytest.mark.slow, pytest.mark.bar("M3")]

SECRET = b"not below the root"
REFUSED = {"dataref_refused", "dataref_missing", "too_large"}


class Audit:
    """What this thread asked the kernel to look up, connect to or start, by Python's own audit events."""

    def __init__(self):
        self.reached = []
        self._thread = None
        sys.addaudithook(self._hear)  # for good: there is no way to take one back

    def __enter__(self):
        self._thread = threading.get_ident()
        return self

    def __exit__(self, *_):
        self._thread = None

    def _hear(self, event, _):
        if threading.get_ident() == self._thread and event.startswith(("socket.", "subprocess.", "os.exec")):
            self.reached.append(event)


AUDIT = Audit()


@pytest.fixture
def root(tmp_path):
    """A root with a file, and all that may lie in it by which somebody would get out."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "sub", outside):
        folder.mkdir(parents=True)
    (root / "sub" / "file").write_bytes(b"inside")
    (outside / "secret").write_bytes(SECRET)
    (root / "link").symlink_to(outside / "secret")
    (root / "relative").symlink_to("../outside/secret")
    (root / "folder").symlink_to(outside)
    (root / "twice").symlink_to(root / "folder")
    (root / "proc").symlink_to("/proc/self")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "socket"))
    return root


@pytest.fixture
def listening():
    """A server to whom nobody may come."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def addresses(root, port, count):
    """So many datarefs of five forms: file with a host, http, s3, data, and paths in another writing."""
    draw = random.Random(3)
    outside = root.parent / "outside" / "secret"
    targets = [
        *(f"{root}/{name}" for name in ("link", "relative", "loop", "pipe", "socket", "sub", "proc/environ")),
        *(f"{root}/{name}/secret" for name in ("folder", "twice", "../outside", "sub/../../outside")),
        *(
            f"/proc/self/root{outside}",
            "/proc/self/environ",
            "/proc/1/mem",
            "/dev/zero",
            "/dev/tcp/127.0.0.1/1",
        ),
        *(f"/proc/{os.getpid()}/fd/{number}" for number in range(4)),
        *(f"{root}/{'a' * 300}", f"{root}/{'b/' * 3000}", f"{root}/sub/\0", f"{root}/\udc80", str(outside)),
    ]
    here = f"127.0.0.1:{port}"
    forms = [
        lambda path: f"file://{here}{path}",
        lambda path: f"file://localhost{path}",
        lambda path: f"file:{path}",
        lambda path: f"{draw.choice(['http', 'https', 'ftp', 'gopher', 'tcp'])}://{here}{path}",
        lambda path: f"s3://{here}{path}",
        lambda path: f"data:text/plain,{path}",
        lambda path: f"//{here}{path}",
        lambda path: rf"\\{here}\{path}",
        lambda path: "file://" + "".join(f"%{byte:02X}" for byte in os.fsencode(path)),
        lambda path: "file://" + quote(os.fsencode(path).replace(b"/", b"%2f")),
        lambda path: f"file://{path}".replace("/", "//"),
        lambda path: f"FILE://{path}/.",
        lambda path: f"file://{path}".replace("..", draw.choice(["%2e.", ".%2E", "%2e%2e"])),
        lambda path: path,
    ]
    pairs = list(itertools.product(forms, targets))
    made = [form(target) for form, target in pairs]
    while len(made) < count:
        signs = list(draw.choice(made[: len(pairs)]))
        for _ in range(draw.randint(1, 4)):
            signs[draw.randrange(len(signs))] = draw.choice(
                [*string.printable, "/", "..", "%00", "%2f", "://"]
            )
        made.append("".join(signs))
    return draw.sample(made, count)


def given(dataref, root):
    """What comes of a dataref: bytes, or the reason for none. Anything else is raised."""
    try:
        return fetch_claim(dataref, root, 1000)
    except EnvelopeError as error:
        return error.reason


def test_no_address_leads_out_of_the_root_or_to_a_server(bar, root, listening):
    made = addresses(root, listening.getsockname()[1], bar.times(1_000, 20_000))
    with AUDIT:
        said = [given(dataref, root) for dataref in made]
    outside = [
        dataref for dataref, found in zip(made, said, strict=True) if found not in {*REFUSED, b"inside"}
    ]
    bar.count(len(made), lost=len(outside) + len(AUDIT.reached))
    assert not outside
    assert not AUDIT.reached
    with pytest.raises(BlockingIOError):
        listening.accept()
    assert given(f"file://{root}/sub/file", root) == b"inside"


def test_control_a_server_that_is_reached_and_a_link_that_is_followed_are_seen(bar, root, listening):
    with AUDIT, socket.create_connection(listening.getsockname()):
        followed = (root / "link").read_bytes()
    reached = AUDIT.reached.copy()
    AUDIT.reached.clear()
    bar.count(2)
    assert "socket.connect" in reached
    assert followed == SECRET
    listening.accept()[0].close()


def swap(folder, link, over):
    """Make of a folder a link out of the root, and a folder again, until it is over."""
    kept = folder.with_name("kept")
    while not over.is_set():
        folder.rename(kept)
        link.rename(folder)
        folder.rename(link)
        kept.rename(folder)


def raced(root, tries, *, until_secret=False):
    """What a file below a folder that is exchanged all the time gives."""
    (root.parent / "outside" / "file").write_bytes(SECRET)
    over = threading.Event()
    thread = threading.Thread(target=swap, args=(root / "sub", root / "folder", over))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    said = set()
    try:
        for _ in range(tries):
            said.add(given(f"file://{root}/sub/file", root))
            if until_secret and SECRET in said:
                break
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    return said


def test_no_race_between_the_check_and_the_opening_leads_out_of_the_root(bar, root):
    tries = bar.times(3_000, 100_000)
    said = raced(root, tries)
    bar.count(tries, lost=int(SECRET in said))
    assert said <= {b"inside", "dataref_refused", "dataref_missing"}


def test_control_opened_by_its_path_the_race_is_won(bar, root, monkeypatch):
    def open_by_path(top, parts):
        return os.open(top.joinpath(*parts), os.O_RDONLY | os.O_NOFOLLOW)

    monkeypatch.setattr(envelope, "_open_below", open_by_path)
    said = raced(root, 1_000_000, until_secret=True)
    bar.count(1)
    assert SECRET in said


def test_a_hard_link_is_a_file_of_the_root_like_any_other(bar, root):
    # No file says where else it has a name: who may make links below the root may also copy into it, and the
    # kernel's fs.protected_hardlinks refuses links to what one may not read and write.
    os.link(root / "sub" / "file", root / "hard")
    bar.count(1)
    assert given(f"file://{root}/hard", root) == b"inside"
