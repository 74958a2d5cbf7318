"""The page of sources: what each sends, and what has drifted."""

from datetime import UTC, datetime

from sqlalchemy import insert

from memory.records import Drift
from memory.schema import drift_alarms


def test_the_newest_drifts_are_told_with_their_source_statistic_and_direction(http, services):
    usual = {"at": datetime.now(UTC), "release": "a" * 64, "items": 300, "log_e": 9.0, "log_limit": 7.0}
    assert "<h2>Drift</h2>" not in http.get("/page/sources").text
    found = [
        Drift(source="<b>door</b>", statistic="energy", direction="lower", since=41, **usual),
        Drift(source=None, statistic="embedding_novelty", direction="higher", since=52, **usual),
    ]
    with services.memory.write_unversioned() as connection:
        for drift in found:
            connection.execute(insert(drift_alarms).values(found=drift.model_dump_json(), announced=False))
    shown = http.get("/page/sources").text
    _, over_all, of_source = shown.split("<h2>Drift</h2>")[1].split("<tr><th>", 3)[-3:]
    assert 'all sources</th><td data-label="statistic">embedding novelty</td>' in over_all
    assert "&lt;b&gt;door&lt;/b&gt;" in of_source
    assert '>energy</td><td data-label="change">lower</td>' in of_source
