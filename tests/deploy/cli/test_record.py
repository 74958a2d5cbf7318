"""`forgewatch record`, against a real server: its list, its proof, and what became of the record's rows."""

from deploy.record.chain import Act, Head
from deploy.record.heads import of_now


def test_acts_are_listed_and_the_chain_is_proven_though_no_broker_has_its_heads(answered, services):
    for number in range(3):
        services.record.append(Act("ada", "label", f"label {number}"))
    services.record.append(Act("bo", "undo", "label 1"))
    assert "bo" in answered.ok("record", "list")
    assert [
        entry["subject"] for entry in answered.json("record", "list", "--actor", "ada", "--limit", "2")
    ] == ["label 2", "label 1"]
    complaint = answered.fails("record", "verify")
    assert "4 acts follow from each other" in complaint
    assert "no broker answers" in complaint


def test_the_first_act_that_was_changed_is_named(answered, services, tmp_path, without_triggers):
    for number in range(5):
        services.record.append(Act("ada", "label", f"label {number}"))
    (path,) = tmp_path.rglob("ledger.sqlite")
    # Who owns the database can drop what forbids it; the chain shows it all the same.
    with without_triggers(f"sqlite:///{path}") as database:
        database.execute("UPDATE deploy_record SET actor = 'eve' WHERE sequence = 3")
    assert "row 3 of the record was changed" in answered.fails("record", "verify")


def test_a_difference_is_accepted_by_the_name_that_the_proof_gave_it(answered, services, monkeypatch):
    services.record.append(Act("ada", "label", "label 1"))
    forged = of_now(services.record, Head(9, "f" * 64))
    monkeypatch.setattr(services.heads, "read", lambda: [forged])  # no broker runs here
    assert "`forgewatch record accept 1-" in answered.fails("record", "verify")
    assert "is not the difference now" in answered.fails("record", "accept", "1-" + "0" * 16, "forged")
    assert len(answered.json("record", "list")) == 1
