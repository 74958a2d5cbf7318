"""The runner end to end: real training of a small network, deploy's own server, a real memory."""

import json
import socket
import threading
from collections import Counter

import httpx
import pytest
import torch
from update_processes import approve

from detector.release.artifact import SNAPSHOT, STATISTICS, WEIGHTS
from detector.release.signature import verify_signed
from memory.labels import undo
from memory.rows import select_exemplars
from memory.settings import MemorySettings
from updater import runner
from updater.candidate.plan import CandidateRefusedError
from updater.candidate.snapshot import Snapshot, made_of
from updater.records import Candidate
from updater.runner import work
from updater.services import open_services
from updater.training.crop_rows import DeviceMemoryError
from updater.worker import run_once


def proposed(url):
    return [Candidate.model_validate(one["candidate"]) for one in httpx.get(f"{url}/releases").json()]


def test_an_update_by_discriminants_unlearns_to_the_bit_what_was_undone(
    few_measured, make_settings, remember, store, deploy_server, learn
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as server:
        settings = make_settings(server[0], learner="lda", backbone="none")

        def learnt():
            folder = learn(*server, settings).folder
            labels = {row.label for row in Snapshot((folder / SNAPSHOT).read_bytes())}
            return labels, [(folder / name).read_bytes() for name in (STATISTICS, WEIGHTS)]

        before = learnt()
        _, wrong = remember("blocky", 40)
        after = learnt()
        assert (after[0], after[1] == before[1]) == ({*before[0], wrong}, False)
        undo(store, wrong, "ann")
        assert learnt() == before


def test_release_0_and_then_an_update_with_a_new_family_are_measured_signed_and_proposed(
    short_recipes, make_settings, remember, deploy_server, learn, signer, monkeypatch
):
    # Deploy takes, and the updater learns on from, what the key signed alone.
    monkeypatch.setenv("FORGEWATCH_DETECTOR_TRUSTED_SIGNERS", str(signer.certificate))
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server(min_new_named=0.5) as (url, artifacts):
        settings = make_settings(url, min_new_named=0.5, signing_key=signer.key)
        release_0 = learn(url, artifacts, settings)
        (candidate,) = proposed(url)
        assert (candidate.digest, candidate.parent) == (release_0.digest, None)
        assert candidate.classes == ("real", "blocky")

        remember("striped", 50)
        remember("posterised", 3)
        second = learn(url, artifacts, settings).digest
        candidate = next(one for one in proposed(url) if one.digest == second)
        assert candidate.parent == release_0.digest
        assert candidate.classes == ("real", "blocky", "striped")
        assert all(gate.state != "broken" for gate in candidate.gates)
        assert {gate.name for gate in candidate.gates} >= {
            "points forgotten of the old families",
            "points of accuracy lost under distortions",
            "share of striped named",
        }

        artifact = verify_signed(artifacts / second, second, signer.certificate)
        evaluation = json.loads((artifact.folder / "evaluation.json").read_bytes())
        counted = {name: evaluation["after"]["classes"][name]["items"] for name in candidate.classes}
        assert counted == {name: evaluation["before"]["classes"][name]["items"] for name in candidate.classes}
        assert counted == evaluation["items"]["test"]
        assert evaluation["before"]["classes"]["striped"]["named"] == 0
        assert evaluation["after"]["classes"]["striped"]["named"] >= 0.5
        assert evaluation["before"]["power"] is None  # a single family cannot be left out
        assert list(evaluation["after"]["power"]["families"]) == ["blocky", "striped"]
        for one in ("before", "after"):
            assert list(evaluation[one]["robustness"]["items"]) == ["blocky", "real", "striped"]
            assert len(evaluation[one]["robustness"]["distorted"]) == 14
        lost = evaluation["after"]["robustness"]["lost"]
        assert lost["reals"] == evaluation["after"]["robustness"]["items"]["real"]
        assert lost["forgeries"] == evaluation["after"]["robustness"]["items"]["blocky"]
        assert evaluation["before"]["robustness"]["lost"] is None
        assert list(evaluation["waiting"]) == ["posterised"]
        for one in ("before", "after"):
            assert {name: sum(of.values()) for name, of in evaluation[one]["confusion"].items()} == counted
            assert evaluation[one]["rejection_roc"][-1] == [1, 1]
        both = counted["real"] + counted["blocky"]
        assert evaluation["flips"]["items"] == both
        assert len(evaluation["flips"]["lost"]) + evaluation["flips"]["won"] <= both

        rows = list(Snapshot((artifact.folder / SNAPSHOT).read_bytes()))
        assert Counter((row.family, row.split) for row in rows) == {
            (name, split): count for split, of in evaluation["items"].items() for name, count in of.items()
        }
        assert {row.label for row in rows} == {1, 2, 3}
        assert {row.family for row in rows if row.label == 3} == {"striped"}
        assert evaluation["made_of"] == made_of(rows).model_dump(mode="json")
        (learner,) = httpx.get(f"{url}/lineage/labels/3").json()["releases"]
        assert (learner["release"]["digest"], learner["through"]) == (second, None)
        assert sum(learner["items"].values()) == 50
        known = next(row for row in rows if row.family == "blocky" and row.split == "train")
        ways = httpx.get(f"{url}/lineage/exemplars/{known.exemplar}").json()
        assert [one["release"]["digest"] for one in ways["releases"]] == [release_0.digest, second]
        page = (artifact.folder / "evaluation.md").read_text()
        assert "| striped (new) | " in page
        assert " → " in page
        card = (artifact.folder / "model_card.md").read_text()
        assert (artifact.manifest.localizer, artifact.manifest.scanner) == (None, None)
        assert "it has no scanner" in card
        for text in (page, card):
            assert "Of a family that it has never seen, about " in text
            assert "| accuracy, % | level 1 | level 3 |" in text


def test_an_update_rehearses_a_budget_of_what_is_live_and_no_proposal_costs_a_crop(
    scant_recipes, make_settings, remember, memory_settings, deploy_server, store, crops
):
    remember("real", 60)
    remember("blocky", 30)
    memory_settings = memory_settings.model_copy(update={"rehearsal_budget": 20})
    with deploy_server() as (url, artifacts):
        settings = make_settings(url)

        def trained():
            run = run_once(settings, memory_settings)
            assert run.error is None
            folder = artifacts / run.candidate
            return run.candidate, json.loads((folder / "evaluation.json").read_bytes())["items"]["train"]

        first, whole = trained()
        assert sum(whole.values()) > 40
        assert trained()[1] == whole  # what was only proposed has been learnt by no release
        approve(url, first)
        remember("striped", 30)
        _, rehearsed = trained()
        with store.read() as connection:
            striped = select_exemplars(connection, shelf="rehearsal", family="striped")
    assert rehearsed == {"real": 10, "blocky": 10, "striped": len(striped)}
    assert len(list(crops.digests())) == 120


def test_a_candidate_that_misses_a_gate_is_proposed_with_its_finding_which_a_person_must_take(
    scant_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server(max_reals_wrong=-0.01) as (url, _):
        run = run_once(make_settings(url, backbone="none", max_reals_wrong=-0.01), memory_settings)
        assert run.state == "proposed with findings"
        assert "share of reals called unknown" in run.error
        assert "bound -0.01" in run.error
        (candidate,) = proposed(url)
        assert candidate.digest == run.candidate
        finding = candidate.findings[0]
        assert finding.low <= finding.value <= finding.high
        assert "Import reals" in finding.mends
        wanted, actor = {"evaluation_digest": candidate.evaluation_digest}, {"X-Forgewatch-Actor": "ann"}
        bare = httpx.post(f"{url}/releases/{candidate.digest}/approve", json=wanted, headers=actor)
        assert bare.status_code == 409


def test_while_deploy_is_down_the_run_waits_queued_and_says_so(make_settings, remember, memory_settings):
    remember("real", 20)
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        run = run_once(make_settings(f"http://127.0.0.1:{taken.getsockname()[1]}"), memory_settings)
    assert run.state == "queued"
    assert "deploy does not answer" in run.error


def test_a_key_that_cannot_sign_fails_early(make_settings, remember, memory_settings, deploy_server, signer):
    remember("real", 60)
    with deploy_server() as (url, _):
        run = run_once(make_settings(url, signing_key=signer.certificate), memory_settings)
    assert run.state == "failed"
    assert run.error.startswith(f"SigningKeyError: the signing key {signer.certificate} is no private key")


@pytest.mark.parametrize(
    "full",
    [torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate much."), DeviceMemoryError("full")],
)
def test_what_is_set_of_training_reaches_it_and_a_gpu_with_too_little_memory_is_one_line(
    full, make_settings, remember, memory_settings, deploy_server, monkeypatch
):
    steps = []

    def learn(step):
        steps.append(step)
        raise full

    monkeypatch.setattr("updater.candidate.builder.learn", learn)
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server() as (url, _):
        run = run_once(make_settings(url, epochs=3, rate=0.5, batch=8), memory_settings)
    ((items, recipe),) = [(len(step.train), step.recipe) for step in steps]
    assert recipe.backbone_steps == round(3 * 1.3 * items / 8)
    assert (recipe.backbone_rate, recipe.batch) == (0.5, 8)
    assert run.state == "failed"
    assert "set FORGEWATCH_UPDATER_BATCH lower" in run.error
    assert "\n" not in run.error


def test_too_few_exemplars_are_refused_with_a_count(make_settings, remember, memory_settings, deploy_server):
    remember("real", 60)
    remember("blocky", 5)
    with deploy_server() as (url, _):
        run = run_once(make_settings(url), memory_settings)
        assert run.state == "refused"
        assert "blocky has" in run.error
        assert "8 train" in run.error


def test_a_scheduled_update_without_a_new_label_is_refused_and_a_wanted_one_is_not(
    make_settings, remember, memory_settings, deploy_server
):
    remember("real", 5)
    with deploy_server() as (url, _), open_services(make_settings(url), memory_settings) as services:

        def run(slot, trigger):
            services.table.request(slot, trigger, "ann")
            return work(services, services.table.claim("one"), threading.Event(), lambda *at: None).error

        assert "too few labelled reals" in run("scheduled/1", "scheduled")
        assert run("scheduled/2", "scheduled") == "nothing was labelled since the last update"
        assert run("drift/1", "drift") == "nothing was labelled since the last update"
        assert "too few labelled reals" in run("manual/1", "manual")
        remember("real", 1)
        assert "too few labelled reals" in run("scheduled/3", "scheduled")


def test_held_back_items_over_their_budget_take_no_part_and_are_counted(
    make_settings, remember, memory_settings, deploy_server, store, monkeypatch
):
    remember("real", 80)
    remember("blocky", 60)
    seen = []

    def looked_at(settings, parent, splits):
        seen.append(splits)
        raise CandidateRefusedError("it was only looked at")

    monkeypatch.setattr(runner, "make_plan", looked_at)
    few = memory_settings.model_copy(update={"held_back_budget": 10})
    with deploy_server() as (url, _):
        assert run_once(make_settings(url), few).state == "refused"
    (splits,) = seen
    assert splits.test.counts() == splits.calibration.counts() == {"blocky": 5, "real": 5}
    with store.read() as connection:
        splits_of = ("train", "calibration", "test")
        shelf = {split: len(select_exemplars(connection, split=split)) for split in splits_of}
    assert len(splits.train) == shelf["train"]
    assert {split: sum(counts.values()) for split, counts in splits.resting.items()} == {
        split: shelf[split] - 10 for split in ("calibration", "test")
    }


@pytest.fixture
def memory_settings(memory_settings, postgresql_url):
    return MemorySettings.model_validate({**memory_settings.model_dump(), "database_url": postgresql_url})


def test_an_update_trains_from_postgresql_and_is_proposed_there(
    scant_recipes, make_settings, remember, memory_settings, deploy_server, postgresql_url
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server(postgresql_url) as (url, artifacts):
        run = run_once(make_settings(url, backbone="none", database_url=postgresql_url), memory_settings)
        assert run.state.startswith("proposed"), run.error
        (release,) = httpx.get(f"{url}/releases").json()
        assert release["candidate"]["digest"] == run.candidate
        assert (artifacts / run.candidate).is_dir()
