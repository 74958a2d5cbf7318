"""The API on the record: what people do in every room stands in one list."""

from memory import acts


def test_acts_of_all_rooms_stand_in_one_list_the_newest_first(http, services, make_artifact, propose):
    artifact = make_artifact()
    propose(artifact)
    with services.memory.write() as connection:
        acts.append(connection, "bo", "label", "label 1", {"what": "gan"})
    http.post("/updates")
    entries = http.get("/record").json()
    # A label came from another database, and is on record by the next look at the latest.
    assert [(e["actor"], e["action"]) for e in entries] == [
        ("bo", "label"),
        ("ada", "request update"),
        ("ada", "propose"),
    ]
    assert entries[0]["details"] == {"what": "gan"}
    assert entries[2]["subject"] == artifact.digest


def test_the_record_is_read_in_pages_and_by_who_what_and_when(http):
    for _ in range(5):
        http.post("/updates")
    first = http.get("/record", params={"limit": 2}).json()
    second = http.get("/record", params={"limit": 2, "before": first[-1]["sequence"]}).json()
    assert [e["sequence"] for e in first + second] == [5, 4, 3, 2]
    assert http.get("/record", params={"actor": "bo"}).json() == []
    assert (
        len(http.get("/record", params={"action": "request update", "since": "2026-01-01T00:00:00Z"}).json())
        == 5
    )
    assert http.get("/record", params={"since": "2999-01-01T00:00:00+02:00"}).json() == []
    for wrong in ({"limit": 0}, {"limit": 1001}, {"since": "yesterday"}, {"before": 0}):
        assert http.get("/record", params=wrong).status_code == 422
