"""What a user brought (volumes, rows, objects, topics) stays when the chart goes; a new install finds it."""

import pytest
from kafka import KafkaAdminClient
from sqlalchemy import create_engine, inspect, text

pytestmark = pytest.mark.cluster


def test_uninstall_leaves_the_data_and_a_new_install_goes_on_with_it(
    chart, stream, values, secrets, kafka, postgresql, object_store
):
    # What is counted must stand still: the memory computes clusters, and takes in unknowns, for long after.
    chart.still()
    before = data(chart, kafka, postgresql, object_store)
    print(f"\n  {before}")
    assert all(before.values())
    chart.uninstall()
    chart.kubectl.until("no pods", lambda: not chart.kubectl.get("pods")["items"])
    assert data(chart, kafka, postgresql, object_store) == before
    with stream.loaded("uninstalled and installed again"):
        chart.install({**values, "detector": {**values["detector"], "replicas": 1}}, secrets)
    assert (stream.rows[-1].lost, stream.rows[-1].twice) == (0, 0)


def data(chart, kafka, postgresql, object_store):
    """How much of everything there is."""
    engine = create_engine(postgresql.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        rows = {
            name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in tables
        }
    engine.dispose()
    admin = KafkaAdminClient(bootstrap_servers=kafka.broker.bootstrap)
    topics = sorted(name for name in admin.list_topics() if name.startswith("forgewatch."))
    admin.close()
    volumes = sorted(each["metadata"]["name"] for each in chart.kubectl.get("pvc")["items"])
    return {"rows": rows, "objects": object_store.objects(), "topics": topics, "volumes": volumes}
