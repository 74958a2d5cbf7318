"""What waits goes to Label Studio with pictures of the server's own, and comes back as labels."""

import base64

import pytest

from memory.labels import history


def test_tasks_go_out_and_labels_come_back_once(http, services, fill):
    ids = fill("cluster", 5, source="<b>")
    given = http.post("/label-studio/tasks", json={"most": 3}).json()
    assert (len(given["tasks"]), given["waiting"]) == (3, 5)
    first = given["tasks"][0]["data"]
    assert (first["exemplar"], first["source"], first["project"]) == (ids[0], "<b>", given["project"])
    assert base64.b64decode(first["image"].partition(",")[2]).startswith(b"\x89PNG")
    said = {"annotations": [[ids[0], "gan", "label-studio:bo"], [ids[1], "gan", "label-studio:bo"]]}
    assert http.post("/label-studio/annotations", json=said | {"dry": True}).json()["labelled"] == 2
    assert http.post("/label-studio/annotations", json=said).json()["labels"] == [
        ["label-studio:bo", "gan", 1]
    ]
    assert http.post("/label-studio/annotations", json=said).json()["already"] == 2
    (entry,) = history(services.memory)
    assert (entry.actor, entry.exemplars) == ("ada", 2)
    acts = {(act["actor"], act["action"]): act["details"] for act in http.get("/record").json()}
    assert acts["ada", "import label"]["annotator_claimed"] == "label-studio:bo"
    assert acts["ada", "export"]["tasks"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "\u202eada", "a" * 201, "\u200b"])
def test_a_claimed_annotator_is_bounded_and_holds_nothing_unseen(http, services, fill, name):
    (id_,) = fill("cluster", 1)
    said = {"annotations": [[id_, "gan", name]]}
    assert http.post("/label-studio/annotations", json=said).status_code == 422
    assert history(services.memory) == []
