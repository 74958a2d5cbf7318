import os
import subprocess
import sys
from uuid import uuid4

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import MessageSizeTooLargeError
from streams import all_of

from deploy.group_lag import group_lag
from deploy.local.broker import cluster_id, start_broker
from deploy.local.processes import PortTakenError, ProcessDiedError, alive, free_port
from ingest.kafka.access import kafka_options
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


@pytest.fixture
def topic(broker):
    name = f"test-{uuid4()}"
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)], wait_for_metadata=True)
    yield name
    admin.delete_topics([name])
    admin.close()


def behind(bootstrap):
    (partition,) = group_lag(
        kafka_options(IngestSettings(bootstrap_servers=bootstrap)), "a-group", "kept", 30
    )
    return partition.lag


def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(broker, topic):
    producer = KafkaProducer(bootstrap_servers=broker, transactional_id=f"test-{uuid4()}", retry_backoff_ms=2)
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.send(topic, value).get(timeout=120)
        end()
    producer.close()
    assert [record.value for record in all_of(broker, topic)] == [b"kept"]


def test_a_record_of_the_widest_topic_is_taken_and_a_wider_one_refused(broker, topic):
    limit = IngestSettings().max_record_bytes
    producer = KafkaProducer(bootstrap_servers=broker, max_request_size=2 * limit)
    producer.send(topic, bytes(limit - 1000)).get(timeout=120)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, bytes(limit + 1000)).get(timeout=120)
    producer.close()


def test_a_topic_that_no_one_made_is_not_made_by_asking_for_it(broker):
    admin = KafkaAdminClient(bootstrap_servers=broker)
    name = f"test-{uuid4()}"
    reader = KafkaConsumer(bootstrap_servers=broker, group_id=None)
    assert not reader.partitions_for_topic(name)
    reader.close()
    assert name not in admin.list_topics()
    admin.close()


def test_a_broker_comes_up_without_any_java_or_maven_on_the_machine_and_says_nothing(tmp_path, kafka_cache):
    code = (
        "import sys; from pathlib import Path; from deploy.local.broker import start_broker\n"
        "start_broker(Path(sys.argv[1]), cache=Path(sys.argv[2])).stop()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path, kafka_cache],
        # A JVM does what JAVA_TOOL_OPTIONS says; a stray one must not reach the broker.
        env={**os.environ, "PATH": "/nonexistent", "JAVA_HOME": "", "JAVA_TOOL_OPTIONS": "-XX:NoSuchOption"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_second_broker_has_its_own_ports_and_a_stopped_one_its_topics(broker, tmp_path, kafka_cache, capfd):
    first = start_broker(tmp_path, cache=kafka_cache)
    try:
        assert first.bootstrap != broker
        admin = KafkaAdminClient(bootstrap_servers=first.bootstrap)
        admin.create_topics(
            [NewTopic("kept", num_partitions=1, replication_factor=1)], wait_for_metadata=True
        )
        admin.close()
        # Its coordinator is made for the first group, and may have to be loaded: a status awaits it.
        assert behind(first.bootstrap) == 0
    finally:
        first.stop()
    assert not alive(first.process)
    assert cluster_id(first.bootstrap) is None
    assert cluster_id(broker)
    second = start_broker(tmp_path, first.port, first.controller_port, cache=kafka_cache)
    try:
        admin = KafkaAdminClient(bootstrap_servers=second.bootstrap)
        assert "kept" in admin.list_topics()
        admin.close()
        assert behind(second.bootstrap) == 0  # and a restarted one has it again
    finally:
        second.stop()
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_told_before_anything_starts(broker, tmp_path, kafka_cache):
    taken = int(broker.rsplit(":", 1)[1])
    with pytest.raises(PortTakenError, match=rf"port {taken} on 127\.0\.0\.1 is taken"):
        start_broker(tmp_path / "broker", taken, cache=kafka_cache)
    assert not (tmp_path / "broker").exists()


def test_a_broker_that_cannot_use_its_folder_is_told_with_its_own_words(tmp_path, kafka_cache):
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text("version=1\ncluster.id=Zm9yZ2V3YXRjaC10ZXN0MA\nnode.id=7\n")
    with pytest.raises(ProcessDiedError, match=r"(?s)broker ended.*broker\.log.*Stored node id 7"):
        start_broker(tmp_path, cache=kafka_cache)


def test_a_broker_that_is_not_there_does_not_answer():
    assert cluster_id(f"127.0.0.1:{free_port()}") is None
