import time

from verdicts import make_item, make_verdict

from ingest.records import InRecord
from memory.estimate.sums import note_estimates


def test_drawn_items_are_listed_labelled_and_called_otherwise_and_told_in_one_line(answered, services):
    verdict = make_verdict(make_item(3), label="real", fake_probability=0.1)
    record = InRecord("verdicts", 0, 3, time.time_ns() // 10**6, None, b"", ())
    with services.memory.write_unversioned() as connection:
        note_estimates(connection, [(record, verdict)], 10_000)
    assert [item["id"] for item in answered.json("audit")] == ["media-0-3"]
    assert "said real (90% sure)" in answered.ok("audit", "media-0-3", "blended")
    assert answered.json("audit") == []
    assert "already" in answered.fails("audit", "media-0-3", "blended")
    assert "you say real instead of blended" in answered.ok("audit", "media-0-3", "real")
    assert "name its class" in answered.fails("audit", "media-0-3", code=2)


def test_accuracy_needs_a_live_release(answered):
    assert "no release is live" in answered.fails("accuracy")


def test_accuracy_without_an_audit_is_not_known_and_the_power_stands_beside(answered, services, proposed):
    artifact = proposed()
    verdict = make_verdict(make_item(3), label="real", fake_probability=0.1, release=artifact.digest)
    record = InRecord("verdicts", 0, 3, time.time_ns() // 10**6, None, b"", ())
    with services.memory.write_unversioned() as connection:
        note_estimates(connection, [(record, verdict)], 0)
    told = answered.ok("accuracy", "--release", artifact.digest[:12])
    assert "not known: label 20 drawn items" in told
    assert "90.0%" not in told
    assert "predicted real" in told
    assert "never seen" in told or "unseen families" in told
    found = answered.json("accuracy", "--release", artifact.digest[:12])
    assert found["accuracy"]["classes"]["real"]["items"] == 1
