import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from verdicts import make_item, make_verdict

from detector.records import Verdict
from detector.unknowns import encode
from ingest.records import InRecord
from memory.features import FEATURE_VERSION, WIDTH, features_of
from memory.intake import UnfitItemError
from memory.labels import label
from memory.metrics import Fill as FillCollector
from memory.worker import arrival_of

pytestmark = pytest.mark.slow

CROPS = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)

BIG = np.zeros((1, 600, 600, 3), np.uint8)  # does not fit the message


VERDICT = make_verdict(make_item(7, partition=1, digest="d" * 64), release="r" * 64)


def message(crops, features, version):
    return encode(VERDICT, crops, features.astype(np.float32), np.ones(4, np.float32), version)


def record(value):
    return InRecord("unknowns", 0, 3, 0, None, value, ())


def test_a_message_becomes_an_item_with_all_that_it_carried():
    features = np.arange(WIDTH, dtype=np.float32)
    value = message(CROPS, features, FEATURE_VERSION)
    found = arrival_of(record(value))
    assert (found.id, found.media_digest, found.source) == ("media-1-7", "d" * 64, "camera")
    assert (found.release, found.unknown_score, found.group) == ("r" * 64, 3, None)
    assert Verdict.model_validate_json(str(found.verdict)) == VERDICT
    np.testing.assert_array_equal(found.crops, CROPS)
    np.testing.assert_array_equal(found.features, features)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no_message"),
        (b"", "no_message"),
        (b"\xff" * 100, "no_message"),
        (message(CROPS, np.full(3, np.inf), FEATURE_VERSION), "bad_features"),
        (message(CROPS[:, :20, :20], np.ones(WIDTH), "of old"), "bad_features"),
        (message(BIG, np.ones(3), FEATURE_VERSION), "no_crops"),
        (message(BIG, np.ones(3), "of old"), "no_crops"),
    ],
)
def test_a_message_that_is_none_is_refused_with_its_reason(value, reason):
    with pytest.raises(UnfitItemError) as caught:
        arrival_of(record(value))
    assert caught.value.reason == reason


@pytest.mark.parametrize("version", ["of old", "of tomorrow", None])
@pytest.mark.parametrize("width", [7, WIDTH])
def test_a_message_of_another_feature_version_gets_features_of_its_crops(version, width):
    found = arrival_of(record(message(CROPS, np.ones(width), version)))
    each = [features_of(crop[None]) for crop in CROPS]
    np.testing.assert_allclose(found.features, np.mean(each, 0), rtol=1e-4, atol=1e-4)


def test_the_fill_of_the_memory_is_counted_by_shelf_and_family(store, fill, make):
    fill([make(i, group="b") for i in range(5)])
    label(store, ["media-0-0", "media-0-1"], "gan", "ada")
    registry = CollectorRegistry()
    registry.register(FillCollector(store))
    text = generate_latest(registry).decode()
    assert 'forgewatch_memory_exemplars{family="gan",shelf="rehearsal"} 2.0' in text
    assert 'forgewatch_memory_exemplars{family="",shelf="unknown"} 3.0' in text
    assert "forgewatch_memory_clusters_waiting 0.0" in text


def worker(tmp_path, **environment):
    defaults = {
        "FORGEWATCH_MEMORY_DATABASE_URL": f"sqlite:///{tmp_path}/memory.sqlite",
        "FORGEWATCH_MEMORY_CROPS_URL": str(tmp_path / "crops"),
        "FORGEWATCH_MEMORY_INDEX_PATH": str(tmp_path / "index"),
        "FORGEWATCH_MEMORY_METRICS_PORT": "0",
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "memory"],
        env=os.environ | defaults | environment,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"FORGEWATCH_MEMORY_MAX_BATCH_MESSAGES": "none"}, "setting=FORGEWATCH_MEMORY_MAX_BATCH_MESSAGES "),
        ({"FORGEWATCH_MEMORY_DATABASE_URL": "nosuch://x"}, "setting=FORGEWATCH_MEMORY_DATABASE_URL "),
    ],
)
def test_a_wrong_setting_is_one_clear_line_and_a_non_zero_exit(tmp_path, environment, said):
    process = worker(tmp_path, **environment)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 2
    assert said in errors
    assert errors.count("\n") == 1


def test_the_worker_waits_for_a_broker_that_is_not_there_and_ends_on_a_signal(tmp_path):
    process = worker(tmp_path)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "round failed" in line)
    assert "Kafka" in line or "Broker" in line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0


# Two lists, one after the other, each of eight matrices of 8 MiB; beside each matrix something small is kept.
_LISTS = """
import sys
from memory.process import return_large_blocks
if sys.argv[1] == "returned":
    return_large_blocks()
kept = []
for _ in range(2):
    matrices = []
    for _ in range(8):
        matrices.append(bytearray(2**23))
        kept.append(bytes(2**16))
    del matrices
held = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
print(int(held.split()[1]) // 1024)
"""


def left_mib(how):
    done = subprocess.run([sys.executable, "-c", _LISTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_a_list_of_clusters_took_goes_back_to_the_system():
    assert left_mib("returned") + 60 < left_mib("kept")
