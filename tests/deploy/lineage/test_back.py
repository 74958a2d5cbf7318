"""From a verdict or a release back to the labels and people behind it."""

import pytest
from lineage_story import MEDIA, exemplar
from verdicts import make_item, make_verdict

from deploy.cli.main import main
from deploy.lineage import back
from detector.release.artifact import SNAPSHOT
from ingest.kafka.topics import TopicError
from memory.labels import undo
from memory.rows import insert_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def in_topic(monkeypatch, story):
    """The topic has the verdict of the story, and no other."""

    def read(_ingest, place, _timeout_s):
        return story.verdict if getattr(place, "offset", None) == story.verdict.item.offset else None

    monkeypatch.setattr(back, "read_verdict", read)


@pytest.mark.usefixtures("in_topic")
def test_a_verdict_leads_to_its_release_approvals_neighbours_labels_and_people(http, story):
    found = http.get(f"/lineage/verdicts/{story.verdict.id}").json()
    assert found["problems"] == []
    assert found["verdict"]["id"] == story.verdict.id
    assert found["written"]["release"] == story.second.version
    release = found["release"]
    assert release["release"]["digest"] == story.second.digest
    assert release["parents"] == [story.first.digest]
    assert [(entry["action"], entry["actor"]) for entry in release["history"]] == [
        ("propose", "ada"),
        ("approve", "cem"),
        ("promote", "cem"),
    ]
    assert [(learnt["label"], learnt["entry"]["actor"], learnt["items"]) for learnt in release["labels"]] == [
        (1, "bea", {"train": 1, "test": 1}),
        (3, "bea", {"train": 1}),
    ]
    assert release["sources"] == {"trip": {"train": 1, "test": 1}, "web": {"train": 1}}
    assert release["verdicts"] == {"real": 1}
    near, next_, unlearnt = found["neighbours"]
    assert (near["learnt"]["family"], near["label"]["actor"], near["label"]["what"]) == (
        "real",
        "bea",
        "real",
    )
    assert (next_["learnt"]["label"], next_["label"]["what"]) == (3, "upsampling")
    assert (unlearnt["learnt"], unlearnt["label"], unlearnt["distance"]) == (None, None, 77)


@pytest.mark.usefixtures("in_topic")
def test_a_verdict_that_its_topic_has_no_more_keeps_its_release(http, story):
    found = http.get(f"/lineage/verdicts/{MEDIA}-0-100").json()
    assert found["problems"] == ["the topic has this verdict no more"]
    assert (found["verdict"], found["neighbours"]) == (None, [])
    assert found["release"]["release"]["digest"] == story.first.digest
    assert [ref["id"] for ref in found["release"]["newest"]] == [f"{MEDIA}-0-101", f"{MEDIA}-0-100"]


@pytest.mark.usefixtures("story")
def test_while_the_broker_is_away_the_rest_is_told(http, monkeypatch):
    def away(*_):
        raise TopicError("cannot reach the broker")

    monkeypatch.setattr(back, "read_verdict", away)
    found = http.get(f"/lineage/verdicts/{MEDIA}-0-102").json()
    assert found["problems"] == ["the verdict itself cannot be read now: cannot reach the broker"]
    assert len(found["release"]["labels"]) == 2


def test_an_unknown_one_is_read_from_the_memory_where_no_topic_has_it(http, story, services):
    verdict = make_verdict(make_item(200, topic=MEDIA), release=story.first.digest)
    with services.memory.write() as connection:
        insert_rows(connection, [exemplar(200, "web", verdict.model_dump_json())])
    found = http.get(f"/lineage/verdicts/{MEDIA}-0-200").json()
    assert (found["written"], found["verdict"]["label"]) == (None, "unknown")
    assert found["release"]["release"]["digest"] == story.first.digest


def test_a_release_from_before_there_were_snapshots_says_so(http, make_artifact, go_live, note, monkeypatch):
    old = make_artifact()
    go_live(old, "bea")
    verdict = make_verdict(make_item(7, topic=MEDIA), release=old.digest)
    note(verdict)
    monkeypatch.setattr(back, "read_verdict", lambda *_: verdict)
    found = http.get(f"/lineage/verdicts/{verdict.id}").json()
    assert found["problems"] == [f"release {old.version} was made before releases had a training snapshot"]
    assert (found["release"]["labels"], found["release"]["sources"]) == (None, None)


def test_what_is_known_to_nobody_is_not_found(http, note):
    for path in (f"verdicts/{MEDIA}-0-9", "verdicts/no%2Fid", f"releases/{'0' * 64}"):
        answer = http.get(f"/lineage/{path}")
        assert answer.status_code == 404, path
    assert "topic-partition-offset" in http.get(f"/lineage/verdicts/{MEDIA}-0-9").json()["detail"]
    note(make_verdict(make_item(9, topic=MEDIA)))
    (problem,) = http.get(f"/lineage/verdicts/{MEDIA}-0-9").json()["problems"][1:]
    assert problem == "the ledger does not know its release aaaaaaaaaaaa"


@pytest.mark.usefixtures("in_topic")
def test_a_snapshot_that_is_not_the_release_s_is_not_believed(http, story, services):
    place = f"{story.second.digest}/{SNAPSHOT}"
    other = b"".join(services.artifacts.read(story.first.digest, SNAPSHOT).pieces)
    services.artifacts._objects.write(place, other)
    answer = http.get(f"/lineage/verdicts/{story.verdict.id}")
    assert answer.status_code == 409
    assert "training snapshot" in answer.json()["detail"]


def learners(http, path):
    """What each release had of it, through which it has it else, and its verdicts."""
    found = http.get(f"/lineage/{path}")
    assert found.status_code == 200, found.text
    return [
        (one["release"]["digest"], one["items"], one["through"], one["verdicts"])
        for one in found.json()["releases"]
    ]


def test_a_label_leads_to_the_releases_that_learnt_it_and_to_those_that_go_back_to_them(http, story):
    first, second = story.first.digest, story.second.digest
    assert learners(http, "labels/2") == [
        (first, {"train": 1, "calibration": 1}, None, {"real": 2}),
        (second, {}, first, {"real": 1}),
    ]
    assert learners(http, "labels/3") == [(second, {"train": 1}, None, {"real": 1})]
    assert http.get("/lineage/labels/2").json()["label"]["actor"] == "cem"


def test_what_was_undone_since_is_still_told(http, story, services):
    undo(services.memory, 3, "cem")
    found = http.get("/lineage/labels/3").json()
    assert found["label"]["undone_by"] == 4
    assert [one["release"]["digest"] for one in found["releases"]] == [story.second.digest]
    assert http.get("/lineage/labels/4").status_code == 404  # an undo teaches nothing
    assert http.get("/lineage/labels/99").status_code == 404


def test_a_source_leads_to_its_labels_and_releases(http, story):
    found = http.get("/lineage/sources", params={"source": "web"}).json()
    assert sum(found["exemplars"].values()) == 3
    assert [entry["label"] for entry in found["labels"]] == [3, 2]
    assert learners(http, "sources?source=trip") == [
        (story.first.digest, {"train": 1, "test": 1}, None, {"real": 2}),
        (story.second.digest, {"train": 1, "test": 1}, None, {"real": 1}),
    ]
    assert http.get("/lineage/sources", params={"source": "sea"}).status_code == 404


def test_an_exemplar_leads_to_the_releases_whose_snapshot_has_it(http, story):
    first, second = story.first.digest, story.second.digest
    assert [one[:3] for one in learners(http, f"exemplars/{MEDIA}-0-3")] == [
        (first, {"train": 1}, None),
        (second, {}, first),
    ]
    # Held back, it taught nothing.
    assert [one[:3] for one in learners(http, f"exemplars/{MEDIA}-0-4")] == [
        (first, {"calibration": 1}, None)
    ]
    assert [one[:3] for one in learners(http, f"exemplars/{MEDIA}-0-5")] == [(second, {"train": 1}, None)]
    assert http.get(f"/lineage/exemplars/{MEDIA}-0-6").status_code == 404


def test_releases_from_before_there_were_snapshots_are_named(http, make_artifact, propose, story):
    old = make_artifact(story.second, ("inpainted",))
    propose(old)
    found = http.get("/lineage/labels/3").json()
    assert found["unsaid"] == [old.digest]
    assert [(one["release"]["digest"], one["through"]) for one in found["releases"]] == [
        (story.second.digest, None),
        (old.digest, story.second.digest),
    ]


def test_figures_of_every_release_are_given_in_their_order(http, story):
    found = http.get("/figures").json()
    assert [one["release"]["digest"] for one in found] == [story.first.digest, story.second.digest]
    assert "af" not in found[0]["figures"]
    assert found[1]["figures"]["af"] == pytest.approx(0)
    assert found[0]["figures"]["aa"] == pytest.approx((0.98 + 0.9) / 2)


# The command `forgewatch lineage`, against a real server in this process.
@pytest.fixture
def run(served, capsys, monkeypatch, story):
    """Runs the command; returns its exit code, what it said and what it complained of."""
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", served)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(back, "read_verdict", lambda *_: story.verdict)

    def lineage(*words):
        code = main(["lineage", *words])
        return code, *capsys.readouterr()

    return lineage


def test_each_way_is_walked_in_one_command(run, story):
    code, said, _ = run(story.verdict.id)
    assert code == 0
    assert f"release {story.second.version}: live" in said
    assert f"trained from {story.first.version}" in said
    for shown in ("approve", "upsampling", "bea", f"{MEDIA}-0-77"):
        assert shown in said
    for words, shown in (
        (("--label", "2"), "label 2: 2 exemplars called blend by cem"),
        (("--source", "web"), "source web: exemplars in the memory: "),
        (("--exemplar", f"{MEDIA}-0-5"), "label 3: 1 exemplars called upsampling by bea"),
        (("--release", story.first.digest[:8]), "2 real"),
    ):
        code, said, _ = run(*words)
        assert code == 0
        assert shown in said
        assert story.first.version in said or story.second.version in said


def test_it_wants_one_thing_to_begin_at_and_says_what_is_not_known(run):
    for words in ((), ("x", "--label", "1")):
        code, _, complaint = run(*words)
        assert code == 2
        assert "give a verdict's id, or one of --label" in complaint
    code, _, complaint = run("--label", "99")
    assert code == 1
    assert "there is no label 99" in complaint
