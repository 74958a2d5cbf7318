"""A rollout goes on where it stood though its processes are killed in the midst of its steps.

A TorchServe that falls twice in ten minutes beside one worker is not excused (detector/challenger.py): here a
worker falls between.
"""

import multiprocessing
import time
from collections import Counter

import pytest
from on_trial import answer_by_itself
from streams import await_that, reader_of

from detector.records import in_share
from ingest.kafka.topics import Topic, ensure_topics

pytestmark = [
    pytest.mark.system,
    # kafka-python leaves the sockets of connections that a killed broker refused to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

PROCESSES = ("detector", "deploy", "broker", "torchserve")
PLAN = "100,5,25,100"


@pytest.fixture(scope="module")
def kills(request):
    return 10 if request.config.getoption("--chaos") else 4


@pytest.fixture(scope="module")
def plan_tuning(kills):
    """Steps that last as long as their kills take."""
    return {"FORGEWATCH_DEPLOY_PLAN_STEP_MINUTES": str(kills / 8), "FORGEWATCH_DEPLOY_PLAN_STEP_ANSWERS": "5"}


def recovered(trials, stream, killed_s):
    """Whether items sent since the kill were answered by whom the step says, and the server stands by it."""
    who = [stream.answered_s, stream.scored_by_both_s]
    if trials.trial().step:
        who.append(stream.answered_by_challenger_s)
    view = trials.view() if all(stream.since(killed_s, times) for times in who) else None
    return view is not None and view.problem is None and view.trial == trials.standing().trial


@pytest.mark.bar("S3")
def test_a_rollout_loses_nothing_doubles_nothing_and_stands_where_it_stood_whatever_is_killed(
    trials, champion, stream, tmp_path, kills, bar
):
    challenger = trials.challenger(champion, tmp_path / "challenger", lambda folder: {})
    trials.approve(challenger, PLAN)
    await_that(lambda: bool(stream.scored_by_both_s))
    killed, worst_s = Counter[str](), dict.fromkeys(PROCESSES, 0.0)
    for number in range(kills):
        due, name = number * 3 // kills, PROCESSES[number % len(PROCESSES)]
        await_that(lambda due=due: trials.trial().step >= due, 1200, trials.view, 0.3)
        trials.kill(name)
        killed_s = time.monotonic()
        await_that(lambda at=killed_s: recovered(trials, stream, at), 300, trials.view, 0.3)
        killed[name] += 1
        worst_s[name] = max(worst_s[name], time.monotonic() - killed_s)
        print(f"{number + 1}: {name} at step {due}: {time.monotonic() - killed_s:.1f} s", flush=True)
    stream.end()
    _, share = trials.trial().shares
    began = next(each.sequence for each in trials.events() if each.move.action == "begin")
    for event in trials.events()[began + 1 :]:  # after the waiver with which it began
        assert (event.move.actor, event.move.action) == ("rollout", "step")
        assert event.move.rollout is not None
        states = {check.state for check in event.move.rollout.checks or ()}
        assert states == {"passed", "not measured", "waived"}
    answers, compared = trials.answers(), trials.comparisons()
    lost, twice = answers[0], sum(items for count, items in answers.items() if count > 1)
    worst = ", ".join(f"{name} {worst_s[name]:.1f} s" for name in worst_s)
    print(f"killed {dict(killed)}; {answers.total()} items, {len(compared)} comparisons; worst {worst}")
    bar.count(kills, lost=lost, twice=twice, recovery_s=max(worst_s.values()))
    assert (lost, twice) == (0, 0)
    assert set(Counter(each.id for each in compared).values()) == {1}
    said = {verdict.id: verdict.release for verdict in trials.verdicts()}
    out = {id for id, release in said.items() if release == challenger.digest}
    assert out == {each.id for each in compared if each.answered == "challenger"}
    assert out
    assert all(in_share(id, share) for id in out)
    assert set(said.values()) == {champion.digest, challenger.digest}


@pytest.mark.usefixtures("stream")
def test_a_consumer_that_commits_its_offsets_by_itself_doubles_answers_when_it_is_killed(trials):
    broker, answers = trials.ingest.bootstrap_servers, "answers"
    ensure_topics(trials.ingest, [Topic(answers, 1000, 1)])
    told, counted = reader_of(broker, answers), Counter[bytes]()

    def times():
        """How often an item was answered at most."""
        for records in told.poll(timeout_ms=50).values():
            counted.update(record.value for record in records)
        return max(counted.values(), default=0)

    for most in (1, 2):
        about = (broker, trials.ingest.media_topic, answers)
        process = multiprocessing.get_context("spawn").Process(target=answer_by_itself, args=about)
        process.start()
        try:
            await_that(lambda most=most: times() >= most)
        finally:
            process.kill()
            process.join()
    told.close()
