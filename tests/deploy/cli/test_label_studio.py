"""`forgewatch label-studio`, against a real server: tasks out, annotations back, and files that are none."""

import json


def test_without_anything_that_waits_there_is_a_configuration_and_no_task(answered, services, tmp_path):
    said = answered.ok("label-studio", "export", str(tmp_path / "ls"))
    assert "0 tasks of 0 items" in said
    assert "<Choices" in (tmp_path / "ls" / "config.xml").read_text()
    assert json.loads((tmp_path / "ls" / "tasks.json").read_text()) == []
    assert services.record.entries(1)[0].action == "export"
    assert "no cluster cx" in answered.fails("label-studio", "export", str(tmp_path), "--cluster", "cx")


def test_what_comes_back_of_nothing_known_is_left_out_with_its_reason(answered, services, tmp_path):
    (file := tmp_path / "export.json").write_text("<View/>")
    assert "no JSON export of Label Studio" in answered.fails("label-studio", "import", str(file))
    result = [{"from_name": "class", "value": {"choices": ["gan"]}}]
    data = {"exemplar": "media-0-1", "project": services.ledger.id}
    other = data | {"project": "other"}
    annotations = [{"completed_by": 1, "result": result}]
    file.write_text(
        json.dumps([{"id": n, "data": d, "annotations": annotations} for n, d in ((1, data), (2, other))])
    )
    done = answered.json("label-studio", "import", str(file))
    assert (done["labelled"], done["left_out"]) == (
        0,
        ["task 2: it is of another project", "media-0-1: there is no such exemplar"],
    )
