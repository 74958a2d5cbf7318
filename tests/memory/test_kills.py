"""The memory's process is killed in the midst of what it does: nothing that was acknowledged is lost."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detector.release.manifest import FEATURE_VERSION
from memory import rows
from memory.index.index import Index
from memory.labels import labelled_counts
from memory.retention import sweep

pytestmark = pytest.mark.slow

WIDTH = 24

DOES = """
import sys
from pathlib import Path
from memory.crops.crop_store import CropStore
from memory.index.index import Index
from memory.intake import remember
from memory.labels import label
from memory.store import Store
from tests.plugins.exemplars import make_arrival
what, url, folder, apart = sys.argv[1:]
store, crops, path = Store(url), CropStore(folder + "/crops"), Path(folder) / "index"
with store.read() as connection:
    from memory import rows
    held = len(rows.select_exemplars(connection))
index = Index.open(path, store, "VERSION", 24)
for number in range(held, held + 1000):
    item = make_arrival(number, 24)
    if apart == "apart":
        print(item.id, flush=True)
    digest = crops.put(item.crops)
    with store.write() as connection:
        remember(connection, crops, index, [item], [digest], 0.1)
    if what == "label":
        label(store, [item.id], "blend", "ada")
    elif what == "snapshot":
        index.save(path)
    elif what == "rebuild":
        path.unlink(missing_ok=True)
        index = Index.open(path, store, "VERSION", 24)
    if apart != "apart":
        print(item.id, flush=True)
""".replace("VERSION", FEATURE_VERSION)

DATABASES = ("sqlite_url", "postgresql_url")


def killed(what, settings, chance, *, apart=""):
    """Let a process work until it is killed; return what it acknowledged."""
    folder = str(Path(settings.crops_url).parent)
    command = [sys.executable, "-c", DOES, what, settings.database_url, folder, apart]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        until = time.monotonic() + chance.random() / 10
        while time.monotonic() < until:
            said.append(process.stdout.readline())
        process.kill()
        said += process.stdout.readlines()
    return [line.strip() for line in said if line.startswith("media-") and line.endswith("\n")]


@pytest.mark.bar("C1")
@pytest.mark.parametrize("what", ["add", "label", "snapshot", "rebuild"])
def test_killed_at_any_moment_it_has_what_it_acknowledged_and_no_phantom(settings, store, crops, what, bar):
    chance, times = random.Random(0), bar.times(2, 20)
    acknowledged = set[str]()
    for _ in range(times):
        acknowledged.update(killed(what, settings, chance))
    with store.read() as connection:
        exemplars = rows.select_exemplars(connection)
    kept = {exemplar.id for exemplar in exemplars}
    index = Index.open(settings.index_path, store, FEATURE_VERSION, WIDTH)
    bar.count(times, lost=len(acknowledged - kept), twice=len(exemplars) - len(kept))
    assert acknowledged <= kept
    assert set(index.ids) == kept
    for exemplar in exemplars:
        assert crops.load(str(exemplar.crops_digest)).shape == (2, 16, 16, 3)
    assert sweep(store, crops) <= times, "at most the crops whose row was never written are left over"
    if what == "label":
        with store.read() as connection:
            labelled = sum(counted.items for counted in labelled_counts(connection))
        assert labelled >= len(acknowledged)


@pytest.mark.bar("C1")
def test_control_what_is_acknowledged_before_the_commit_is_lost(settings, store):
    chance, acknowledged = random.Random(0), set[str]()
    for _ in range(60):
        acknowledged.update(killed("add", settings, chance, apart="apart"))
        with store.read() as connection:
            kept = {exemplar.id for exemplar in rows.select_exemplars(connection)}
        if acknowledged - kept:
            return
    pytest.fail("it never fell between both")
