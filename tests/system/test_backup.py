"""The commands of BACKUP.md, as they stand there, on a real PostgreSQL, S3 server and broker."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from verdicts import unknown_message

from deploy.releases.ledger import Ledger, Move
from deploy.releases.publish import Publisher, read_topic
from deploy.releases.standing import replay
from ingest.kafka.access import kafka_options
from ingest.records import InRecord, Position
from ingest.settings import IngestSettings
from memory import rows
from memory.crops.crop_store import CropStore
from memory.crops.object_store import ObjectStore
from memory.labels import label
from memory.retention import sweep
from memory.settings import MemorySettings
from memory.store import Store, load_offsets, load_positions
from memory.worker import MemoryWorker
from updater.data.training_data import CropsLostError, load_splits
from updater.records import Candidate

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "helm" / "forgewatch" / "BACKUP.md"
A, B = "a" * 64, "b" * 64
TOPIC = "unknowns"
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # its python is this one


def commands(program):
    return re.findall(rf"^ +({program} .*)$", PAGE.read_text(), re.MULTILINE)


@dataclass
class Stack:
    """What one Forgewatch keeps; `environment` is what the page's commands are run with."""

    environment: dict[str, str]
    folder: Path
    crops_url: str

    @property
    def url(self):
        return self.environment["FORGEWATCH_MEMORY_DATABASE_URL"]

    def run(self, command):
        done = subprocess.run(
            ["bash", "-ec", command],
            env=os.environ | self.environment | {"PATH": _PATH},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def remember(self, numbers):
        """These unknowns come from the topic, with all that the memory's process does to them."""
        settings = MemorySettings(
            database_url=self.url, crops_url=self.crops_url, index_path=self.folder / "index"
        )
        with ExitStack() as stack:
            worker = MemoryWorker(IngestSettings(), settings, stack)
            worker.take(
                [InRecord(TOPIC, 0, n, 0, None, unknown_message(n), ()) for n in numbers], topic_id="id"
            )

    def label(self, numbers, family):
        store = Store(self.url)
        label(store, [f"media-0-{n}" for n in numbers], family, "ann")
        store.close()

    def go_live(self, digest):
        candidate = Candidate(
            digest=digest, evaluation_digest="e" * 64, parent=None, update=1, classes=("real",), gates=()
        )
        ledger = Ledger(self.url)
        ledger.append(
            lambda history: [
                Move("ada", "propose", digest, "e" * 64, candidate=candidate),
                Move("ada", "approve", digest, "e" * 64),
                Move("ada", "promote", digest, "e" * 64),
            ]
        )
        ledger.close()

    def dump(self, name):
        (command,) = commands("pg_dump")
        self.run(command)
        (self.folder / "forgewatch.dump").rename(self.folder / name)

    def restore(self, name):
        """Into an empty database of the page's name; all is there from then on."""
        shutil.copy(self.folder / name, self.folder / "forgewatch.dump")
        at = make_url(self.url).set(database="forgewatch").render_as_string(hide_password=False)
        self.run("dropdb --if-exists --force forgewatch")
        self.environment["FORGEWATCH_MEMORY_DATABASE_URL"] = at
        (command,) = commands("createdb")
        self.run(command)

    def copy_crops(self, command, *, back=False):
        if back:
            here, there = '"$FORGEWATCH_MEMORY_CROPS_URL"', '"$BACKUP/crops"'
            command = command.replace(f"{here} {there}", f"{there} {here}")
        self.run(command)

    def lose_crops(self):
        CropStore(self.crops_url).delete_all(self.held())
        assert self.held() == set()

    def held(self):
        return {Path(name).stem for name in ObjectStore(self.crops_url).names()}

    def ids(self):
        store = Store(self.url)
        with store.read() as connection:
            found = [int(exemplar.id.rsplit("-", 1)[1]) for exemplar in rows.select_exemplars(connection)]
        store.close()
        return sorted(found)


@pytest.fixture
def stack(postgresql_server, bucket, tmp_path):
    for program in ("pg_dump", "pg_restore", "createdb", "dropdb"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    server = make_url(postgresql_server)
    name = f"live{os.getpid()}"
    environment = {
        "PGHOST": str(server.host),
        "PGPORT": str(server.port),
        "PGUSER": str(server.username),
        "FORGEWATCH_MEMORY_DATABASE_URL": f"{postgresql_server}/{name}",
        "FORGEWATCH_MEMORY_CROPS_URL": f"{bucket}/live/crops",
        "FORGEWATCH_DEPLOY_ARTIFACTS_URL": f"{bucket}/live/artifacts",
        "BACKUP": f"{bucket}/backup",
    }
    made = Stack(environment, tmp_path, environment["FORGEWATCH_MEMORY_CROPS_URL"])
    made.run(f"createdb {name}")
    yield made
    made.run(f"dropdb --if-exists --force forgewatch; dropdb --force {name}")


@pytest.fixture(params=["aws", "python"])
def copy(request):
    """The page's command that copies the crops, by each tool that it names."""
    program = request.param
    if shutil.which(program) is None:
        pytest.skip("the AWS CLI is not installed")
    return next(command for command in commands(program) if "CROPS_URL" in command)


def test_what_was_backed_up_is_all_there_again_and_goes_on(stack, copy):
    stack.remember(range(6))
    stack.label(range(2), "blend")
    stack.go_live(A)
    stack.dump("now")
    stack.copy_crops(copy)
    held = stack.held()
    before = Ledger(stack.url)
    events, identity = before.events(), before.id
    before.close()
    stack.lose_crops()
    stack.copy_crops(copy, back=True)
    stack.restore("now")

    assert stack.held() == held
    store, crops = Store(stack.url), CropStore(stack.crops_url)
    with store.read() as connection:
        found = rows.select_exemplars(connection)
        assert load_positions(connection) == {(TOPIC, 0): Position(6, "id")}
    assert sorted(one.family for one in found if one.family) == ["blend"] * 2
    for one in found:
        assert crops.load(str(one.crops_digest)).shape == (2, 32, 32, 3)
    store.close()
    after = Ledger(stack.url)
    assert (after.events(), after.id) == (events, identity)
    after.close()
    engine = create_engine(make_url(stack.url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
        connection.execute(text("UPDATE deploy_ledger SET actor = 'eve'"))
    engine.dispose()
    stack.remember(range(6, 9))
    stack.go_live(B)
    assert stack.ids() == list(range(9))


def test_rows_older_than_the_crops_delete_only_what_no_row_names_and_take_the_rest_again(stack):
    stack.remember(range(4))
    stack.dump("before")
    named = stack.held()
    stack.remember(range(4, 7))
    stack.restore("before")
    assert stack.ids() == list(range(4))
    store, crops = Store(stack.url), CropStore(stack.crops_url)
    assert sweep(store, crops, {digest[:2] for digest in stack.held()}) == 3
    assert stack.held() == named
    with store.read() as connection:
        assert load_offsets(connection) == {(TOPIC, 0): 4}
    store.close()
    stack.remember(range(4, 7))  # which the topic still has
    assert stack.ids() == list(range(7))
    assert len(stack.held()) == 7


def test_crops_older_than_the_rows_stop_an_update_until_they_are_back(stack, copy):
    stack.remember(range(4))
    stack.copy_crops(copy)
    old = stack.held()
    stack.remember(range(4, 24))
    stack.label(range(24), "blend")
    stack.dump("after")
    everything = {name: CropStore(stack.crops_url).load_views(name) for name in stack.held()}
    stack.lose_crops()
    stack.copy_crops(copy, back=True)
    stack.restore("after")
    assert stack.held() == old
    store, crops = Store(stack.url), CropStore(stack.crops_url)
    with pytest.raises(CropsLostError, match="CROPS_URL"):
        load_splits(store, crops)
    crops.put_all(list(everything.values()))  # as from a newer copy
    splits = load_splits(store, crops)
    assert sum(len(getattr(splits, name)) for name in ("train", "calibration", "test")) == 24
    store.close()


def test_unfinished_uploads_are_not_copied_and_artifacts_are(stack):
    if shutil.which("aws") is None:
        pytest.skip("the AWS CLI is not installed")
    (command,) = (one for one in commands("aws") if "ARTIFACTS_URL" in one)
    objects = ObjectStore(stack.environment["FORGEWATCH_DEPLOY_ARTIFACTS_URL"])
    for name in (f"{A}/manifest.json", f".incoming/{B}/manifest.json", f".used/{A}"):
        objects.write(name, name.encode())
    stack.run(command)
    copied = ObjectStore(f"{stack.environment['BACKUP']}/artifacts")
    assert copied.read(f"{A}/manifest.json") == f"{A}/manifest.json".encode()
    assert not copied.holds(f".incoming/{B}/manifest.json")
    assert not copied.holds(f".used/{A}")


def test_a_ledger_older_than_the_releases_topic_says_what_is_served(stack, settings, make_topic):
    topic = make_topic(compacted=True)

    def publish():
        ledger = Ledger(stack.url)
        Publisher(ledger, kafka_options(settings), topic, interval_s=60, timeout_s=10).heal()
        ledger.close()
        newest = read_topic(kafka_options(settings), topic, 10).newest
        return newest.stable if newest else None

    stack.go_live(A)
    stack.dump("before")
    stack.go_live(B)
    assert publish() == B
    stack.restore("before")
    assert publish() == A
    ledger = Ledger(stack.url)
    assert replay(ledger.events()).epoch > 0
    ledger.close()
