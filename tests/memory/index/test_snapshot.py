import random

import pytest

from detector.release.manifest import FEATURE_VERSION
from memory.index import index as snapshot
from memory.index.index import Index, IndexSnapshotError

WIDTH = 24


@pytest.fixture
def saved(tmp_path, store, fill, make):
    fill([make(i) for i in range(40)])
    Index.open(tmp_path / "index", store, FEATURE_VERSION, WIDTH).save(tmp_path / "index")
    return tmp_path / "index"


def test_every_byte_of_a_snapshot_is_vouched_for(saved):
    content = saved.read_bytes()
    with snapshot.open_snapshot(saved):
        pass
    for place in [*range(0, 48), *range(48, len(content), 997), len(content) - 1]:
        assert is_noticed(saved, flipped(content, place))


def flipped(content, place, bits=1):
    return content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]


def is_noticed(path, content):
    path.write_bytes(content)
    try:
        with snapshot.open_snapshot(path):
            return False
    except IndexSnapshotError:
        return True


@pytest.mark.bar("C3")
def test_wherever_a_snapshot_is_flipped_or_cut_that_is_noticed(saved, bar):
    content, chance, count = saved.read_bytes(), random.Random(0), bar.times(50, 1000)
    damaged = [
        flipped(content, chance.randrange(len(content)), 1 << chance.randrange(8)) for _ in range(count)
    ]
    damaged += [content[: chance.randrange(len(content))] for _ in range(count)]
    missed = sum(not is_noticed(saved, each) for each in damaged)
    bar.count(len(damaged), lost=missed)
    assert missed == 0


@pytest.mark.bar("C3")
def test_control_without_the_digest_a_flipped_vector_is_not_noticed(saved, monkeypatch):
    monkeypatch.setattr(snapshot, "_digest", lambda file: file.seek(0) or file.read(32))
    content = saved.read_bytes()
    assert not is_noticed(saved, flipped(content, len(content) - 10))
