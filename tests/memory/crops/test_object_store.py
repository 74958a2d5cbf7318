"""Objects in a real S3 server: whole or not there, told in one line, within bounded time."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from s3_server import SECRET, use

from ingest.process.frame import WrongSettingError
from memory.crops import object_store
from memory.crops.object_store import ObjectStore, local_folder, require_files

pytestmark = pytest.mark.slow


def place(url: str) -> tuple[str, str]:
    """The bucket and the prefix of a URL."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix


def test_an_object_is_what_was_written_until_it_is_deleted(bucket):
    store = ObjectStore(bucket)
    store.write("a/b", b"first")
    store.write("a/b", b"second")
    assert (store.read("a/b"), store.read("a/b", 2, 4), store.size("a/b")) == (b"second", b"co", 6)
    assert store.holds("a/b")
    store.delete("a/b")
    store.delete("a/b")
    assert not store.holds("a/b")
    with pytest.raises(FileNotFoundError):
        store.read("a/b")


def test_more_objects_than_one_answer_lists_are_listed(bucket):
    store = ObjectStore(bucket)
    wanted = [f"ab/{number:04}" for number in range(1205)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.write(name, b"x"), [*wanted, "abc/other"]))
    assert sorted(store.names("ab")) == wanted
    assert len(store.names()) == 1206
    ages = [one.modified for one in store.list_objects("ab")]
    assert max(ages) - min(ages) < timedelta(minutes=5)


def test_a_large_file_goes_in_parts_and_comes_back_whole(s3_server, bucket, tmp_path):
    store = ObjectStore(bucket)
    value = b"".join(number.to_bytes(4, "big") * 1024 for number in range(10 * 1024))
    (tmp_path / "large").write_bytes(value)
    store.upload(tmp_path / "large", "large")
    name, prefix = place(bucket)
    parts = s3_server.client.head_object(Bucket=name, Key=f"{prefix}/large")["ETag"].strip('"').split("-")
    assert parts[1:] == ["3"]
    store.download("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == value


def test_an_upload_in_parts_that_was_never_ended_is_given_up_once_it_is_old(s3_server, bucket):
    store, client, (name, prefix) = ObjectStore(bucket), s3_server.client, place(bucket)
    client.create_multipart_upload(Bucket=name, Key=f"{prefix}/left")
    now = datetime.now(UTC)
    assert store.abort_uploads(now - timedelta(days=1)) == 0
    assert store.abort_uploads(now + timedelta(days=1)) == 1
    assert "Uploads" not in client.list_multipart_uploads(Bucket=name)


def test_what_another_process_deleted_is_seen_at_once(s3_server, bucket):
    store, (name, prefix) = ObjectStore(bucket), place(bucket)
    store.write("ab/one", b"x")
    assert store.names("ab") == ["ab/one"]
    assert store.holds("ab/one")
    s3_server.client.delete_object(Bucket=name, Key=f"{prefix}/ab/one")
    assert not store.holds("ab/one")
    assert store.names("ab") == []


def test_a_bucket_that_is_not_there_is_told_and_is_no_empty_one(bucket):
    gone = ObjectStore("s3://no-such-bucket/x")
    assert gone.hindrance() == "the object store has no bucket no-such-bucket"
    for act in (lambda: gone.names("ab"), lambda: gone.write("a", b"x")):
        with pytest.raises(OSError, match="bucket"):
            act()
    assert ObjectStore(bucket).hindrance() is None


def test_a_wrong_secret_is_refused_in_one_line_that_tells_no_secret(s3_server, bucket, monkeypatch):
    assert ObjectStore(bucket).hindrance() is None
    use(monkeypatch, s3_server.endpoint, "another-secret")
    problem = ObjectStore(bucket).hindrance()
    assert problem is not None
    assert "refused" in problem
    assert "\n" not in problem
    assert "another-secret" not in problem
    assert SECRET not in problem
    with pytest.raises(OSError, match="refused"):
        ObjectStore(bucket).write("name", b"x")


def test_an_endpoint_that_is_none_or_where_nobody_listens_is_told(bucket, monkeypatch):
    for endpoint in ("no endpoint", "http://127.0.0.1:1"):
        use(monkeypatch, endpoint)
        problem = ObjectStore(bucket).hindrance()
        assert problem is not None
        assert "\n" not in problem


def test_a_server_that_is_too_slow_costs_bounded_time(line, bucket, monkeypatch):
    store = ObjectStore(bucket)
    line.delay_s = 0.2
    store.write("name", b"x")
    assert store.hindrance() is None
    line.delay_s = 60
    began = time.monotonic()
    assert store.hindrance() == "the object store did not answer within 3 s"
    monkeypatch.setattr(object_store, "CALL_S", 1.0)
    for act in (lambda: store.read("name"), lambda: store.write("other", b"x"), lambda: store.holds("name")):
        with pytest.raises(OSError, match="did not answer"):
            act()
    assert time.monotonic() - began < 15


def test_a_server_that_fails_for_a_while_is_a_fault_of_one_line_and_then_none(line, bucket):
    store = ObjectStore(bucket)
    line.fails = True
    for act in (lambda: store.write("name", b"x"), lambda: store.holds("name"), lambda: store.names()):
        with pytest.raises(OSError, match="503") as caught:
            act()
        assert not isinstance(caught.value, FileNotFoundError)
        assert "\n" not in str(caught.value)
    line.fails = False
    store.write("name", b"x")
    assert store.holds("name")


@pytest.mark.parametrize("size", [2**20, 40 * 2**20])
def test_a_put_that_breaks_off_half_way_leaves_nothing_under_its_name(line, bucket, tmp_path, size):
    store, path = ObjectStore(bucket), tmp_path / "file"
    path.write_bytes(b"x" * size)
    line.breaks_after = size // 2 if size < 2**24 else 2**23
    with pytest.raises(OSError, match="object store"):
        store.upload(path, "name")
    line.breaks_after = None
    assert not store.holds("name")
    assert store.names() == []
    store.upload(path, "name")
    assert store.size("name") == size


@pytest.mark.parametrize(
    ("url", "said"),
    [("nothing://x", "no kind of URL"), ("s3://", "bucket is missing"), ("s3:///x", "bucket is missing")],
)
def test_a_url_that_opens_nothing_is_a_wrong_setting(url, said):
    with pytest.raises(WrongSettingError, match=f"FORGEWATCH_X_URL: .*{said}"):
        require_files("FORGEWATCH_X_URL", url)


def test_a_folder_is_told_from_an_object_store():
    assert local_folder("a/b") == Path("a/b").absolute()
    assert local_folder("file:///a/b") == Path("/a/b")
    assert local_folder("s3://a/b") is None
