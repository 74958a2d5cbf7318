import os
from pathlib import Path

import pytest

from ingest.claim_check import ClaimCheckError, fetch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a photo.jpg").write_bytes(b"media")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside" / "file").write_bytes(b"secret")
    return folder


def reason(dataref: str, root: Path | None, limit: int = 100) -> str:
    with pytest.raises(ClaimCheckError) as error:
        fetch(dataref, root, limit)
    return error.value.reason


def test_a_file_below_the_root_is_read(root: Path) -> None:
    assert fetch(f"file://{root}/sub/a%20photo.jpg", root, 5) == b"media"
    assert fetch(f"file://localhost{root}/sub/a%20photo.jpg", root, 5) == b"media"


def test_without_a_root_everything_is_refused(root: Path) -> None:
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
        "file://{root}/%ff",
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
def test_what_is_not_a_file_url_below_the_root_is_refused(dataref: str, root: Path) -> None:
    assert reason(dataref.format(root=root), root) == "dataref_refused"


def test_a_link_out_of_the_root_is_refused_and_one_inside_is_followed(root: Path) -> None:
    (root / "out").symlink_to(root.parent / "secret")
    (root / "folder").symlink_to(root.parent)
    (root / "in").symlink_to(root / "sub" / "a photo.jpg")
    assert reason(f"file://{root}/out", root) == "dataref_refused"
    assert reason(f"file://{root}/folder/secret", root) == "dataref_refused"
    assert fetch(f"file://{root}/in", root, 5) == b"media"


def test_a_link_to_itself_is_refused(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    assert reason(f"file://{root}/loop", root) in ("dataref_refused", "dataref_missing")


def test_a_pipe_a_folder_and_a_device_are_refused_without_waiting(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert reason(f"file://{root}/pipe", root) == "dataref_refused"
    assert reason(f"file://{root}/sub", root) == "dataref_refused"
    assert reason("file:///dev/zero", Path("/dev")) == "dataref_refused"


def test_a_missing_file_is_missing(root: Path) -> None:
    assert reason(f"file://{root}/none", root) == "dataref_missing"
    assert reason(f"file://{root}/sub/a%20photo.jpg/none", root) in ("dataref_refused", "dataref_missing")


def test_a_file_over_the_limit_is_refused_by_its_size_alone(root: Path) -> None:
    with (root / "big").open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would fill the memory
    assert reason(f"file://{root}/big", root) == "too_large"
    assert reason(f"file://{root}/sub/a%20photo.jpg", root, 4) == "too_large"


@pytest.mark.parametrize("name", ["\ud800", "a\udcff", "\0", "%00", "x" * 300, "y/" * 3000])
def test_a_path_that_no_file_system_has_is_refused_or_missing(name: str, root: Path) -> None:
    assert reason(f"file://{root}/{name}", root) in ("dataref_refused", "dataref_missing")


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = root / "growing"
    growing.write_bytes(b"1234")
    real = os.fstat

    def grow_after(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        growing.write_bytes(b"x" * 1_000_000)
        return status

    monkeypatch.setattr(os, "fstat", grow_after)
    assert reason(f"file://{root}/growing", root, 100) == "too_large"
