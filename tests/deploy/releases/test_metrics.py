from dataclasses import replace
from datetime import timedelta

from prometheus_client import REGISTRY, CollectorRegistry

from deploy.releases.artifacts import ArtifactMissingError
from deploy.releases.evidence import Evaluations
from deploy.releases.metrics import EvaluationGauges, show

FIRST, SECOND, THIRD = (letter * 64 for letter in "abc")
LIVE_A = (("propose", FIRST), ("approve", FIRST), ("promote", FIRST))
LIVE_B = (*LIVE_A, ("propose", SECOND), ("approve", SECOND), ("promote", SECOND))


def served():
    (metric,) = (metric for metric in REGISTRY.collect() if metric.name == "forgewatch_deploy_serve")
    return {(sample.labels["slot"], sample.labels["release"]): sample.value for sample in metric.samples}


def evaluation(registry, role, measure):
    return registry.get_sample_value("forgewatch_deploy_evaluation", {"role": role, "measure": measure})


def test_what_is_to_be_served_is_the_live_release_alone(new_history):
    show(new_history().events)
    assert served() == {}
    show(new_history(*LIVE_A).events)
    assert served() == {("stable", FIRST[:12]): 1}
    show(new_history(*LIVE_B).events)
    assert served() == {("stable", SECOND[:12]): 1}
    show(new_history(*LIVE_B, ("rollback", SECOND)).events)
    assert served() == {("stable", FIRST[:12]): 1}


def test_the_oldest_that_waits_for_a_person_says_since_when(new_history):
    def since():
        return REGISTRY.get_sample_value("forgewatch_deploy_proposed_since_timestamp_seconds")

    events = new_history(*LIVE_A, ("propose", SECOND), ("propose", THIRD)).events
    later = tuple(replace(event, at=event.at + timedelta(hours=event.sequence)) for event in events)
    show(later)
    assert since() == later[3].at.timestamp()
    approved = new_history(*LIVE_A, ("propose", SECOND), ("approve", SECOND))
    show(approved.events)  # of another person too, or to go live: its approval expires
    assert since() == approved.events[-1].at.timestamp()
    show(new_history(*LIVE_A).events)
    assert since() == 0


def test_the_live_release_and_the_one_before_show_their_stored_evaluations(new_history):
    history = new_history(*LIVE_A)
    read = []

    def stored(digest):
        read.append(digest)
        found = history.evidence(digest).evaluation
        return found

    registry = CollectorRegistry()
    registry.register(EvaluationGauges(lambda: history.events, Evaluations(stored)))
    assert evaluation(registry, "live", "unseen_auc") == 0.9
    assert evaluation(registry, "live", "af") is None
    assert evaluation(registry, "previous", "aa") is None
    for wish in LIVE_B[3:]:
        assert history.wish(*wish)
    assert evaluation(registry, "live", "af") == 0
    assert evaluation(registry, "previous", "reals_fake") == 0.01
    assert read == [FIRST, SECOND]


def test_an_evaluation_that_is_gone_or_not_what_was_approved_is_not_shown(new_history):
    history = new_history(*LIVE_A)
    given = history.evidence(FIRST).evaluation

    def gone(digest):
        raise ArtifactMissingError(digest)

    for stored in (gone, lambda _: given.replace(b"0.9", b"1.0"), lambda _: b"{}"):
        registry = CollectorRegistry()
        registry.register(EvaluationGauges(lambda: history.events, Evaluations(stored)))
        assert evaluation(registry, "live", "aa") is None
