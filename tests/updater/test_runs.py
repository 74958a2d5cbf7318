import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import SecretStr
from sqlalchemy import create_engine

from deploy.client.http import Client
from deploy.settings import DeploySettings
from updater.deploy_client import DeployClient, DeployUnavailableError
from updater.records import NOT_LET_IN
from updater.runner import LeaseHeartbeat
from updater.runs import LeaseLostError, RunTable
from updater.settings import UpdaterSettings

START = datetime(2025, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now

    def pass_s(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def url(either_database):
    return either_database


def view(url, clock):
    """A process's view of the database."""
    engine = create_engine(url)
    yield RunTable(engine, lease_s=60, max_takeovers=2, clock=clock)
    engine.dispose()


table, other_host = pytest.fixture(view), pytest.fixture(view)


@pytest.mark.parametrize("held", [True, False])
def test_a_run_that_is_cancelled_ends_and_its_holder_writes_nothing_more(table, held):
    run, other = (table.request(f"manual/{n}", "manual", "ann")[0] for n in (1, 2))
    lease = table.claim("runner") if held else None
    assert table.refuse("cancelled by ann: a typo", run.id) == [run.id]
    assert table.refuse("again", run.id) == []
    ended = table.get(run.id)
    assert (ended.state, ended.error) == ("refused", "cancelled by ann: a typo")
    if lease is not None:
        for write in (lambda: table.heartbeat(lease, "train", 1, 2), lambda: table.finish(lease, "proposed")):
            with pytest.raises(LeaseLostError):
                write()
    assert table.claim("runner").run == other.id


def test_a_slot_gets_one_row_however_often_it_is_asked_for(table, other_host):
    first, made = table.request("manual/1", "manual", "ann")
    again, made_again = other_host.request("manual/1", "manual", "bob")
    assert made
    assert not made_again
    assert again == first
    assert again.requested_by == "ann"
    assert table.request("manual/2", "manual", "ann")[1]


def test_a_claimed_run_is_no_one_elses(table, other_host):
    table.request("manual/1", "manual", "ann")
    lease = table.claim("one")
    assert lease is not None
    assert other_host.claim("two") is None
    assert table.get(lease.run).runner == "one"


def test_updates_run_one_at_a_time_and_the_oldest_first(table):
    first, _ = table.request("manual/1", "manual", "ann")
    second, _ = table.request("manual/2", "manual", "ann")
    lease = table.claim("one")
    assert lease.run == first.id
    assert table.claim("two") is None
    table.finish(lease, "refused", error="a gate did not hold")
    assert table.claim("two").run == second.id


def test_the_run_of_a_silent_runner_is_taken_over_and_the_zombie_may_write_nothing(table, other_host, clock):
    table.request("manual/1", "manual", "ann")
    zombie = table.claim("one")
    clock.pass_s(61)
    successor = other_host.claim("two")
    assert successor.run == zombie.run
    assert successor.token > zombie.token
    for write in (
        lambda: table.heartbeat(zombie, "learn", 9, 10),
        lambda: table.release(zombie),
        lambda: table.record_newest_label(zombie, 7),
        lambda: table.finish(zombie, "proposed", candidate="0" * 64),
    ):
        with pytest.raises(LeaseLostError):
            write()
    run = other_host.get(successor.run)
    assert (run.state, run.runner, run.stage, run.candidate) == ("running", "two", None, None)
    other_host.heartbeat(successor, "learn", 1, 10)


def test_a_heartbeat_keeps_the_run(table, other_host, clock):
    table.request("manual/1", "manual", "ann")
    lease = table.claim("one")
    for step in range(5):
        clock.pass_s(50)
        table.heartbeat(lease, "learn", step, 5)
        assert other_host.claim("two") is None
    run = table.get(lease.run)
    assert (run.stage, run.done, run.total, run.takeovers) == ("learn", 4, 5, 0)


def test_a_released_run_is_claimed_again_at_once_and_does_not_count_as_a_death(table, other_host):
    table.request("manual/1", "manual", "ann")
    lease = table.claim("one")
    table.release(lease)
    again = other_host.claim("two")
    assert again.run == lease.run
    assert other_host.get(again.run).takeovers == 0
    with pytest.raises(LeaseLostError):
        table.heartbeat(lease, "learn", 1, 2)


def test_a_claim_overtaken_between_its_look_and_its_write_gets_nothing(table, other_host, monkeypatch):
    table.request("manual/1", "manual", "ann")
    look = table._claimable

    def look_and_be_slow(now):
        seen = look(now)
        # Claimed and given back meanwhile: the row looks as it did, but its token has moved on.
        other_host.release(other_host.claim("two"))
        return seen

    monkeypatch.setattr(table, "_claimable", look_and_be_slow)
    assert table.claim("one") is None


def test_a_run_that_kills_every_runner_is_given_up_and_says_where(table, clock):
    run, _ = table.request("manual/1", "manual", "ann")
    for _ in range(3):
        table.heartbeat(table.claim("one"), "learn", 1, 2)
        clock.pass_s(61)
    assert table.claim("one") is None
    ended = table.get(run.id)
    assert ended.state == "failed"
    assert "3 runners died at stage learn" in ended.error


def test_a_run_ends_once_and_in_a_state_that_is_an_end(table):
    table.request("manual/1", "manual", "ann")
    lease = table.claim("one")
    with pytest.raises(ValueError, match="running"):
        table.finish(lease, "running")
    ended = table.finish(lease, "proposed", candidate="a" * 64)
    assert (ended.state, ended.candidate, ended.lease_until) == ("proposed", "a" * 64, None)
    with pytest.raises(LeaseLostError):
        table.finish(lease, "failed", error="late")


def test_a_long_reason_is_cut(table):
    table.request("manual/1", "manual", "ann")
    assert len(table.finish(table.claim("one"), "failed", error="x" * 5_000).error) == 1_000


def test_of_runners_that_claim_at_the_same_moment_one_wins(url):
    engine = create_engine(url)
    table = RunTable(engine, lease_s=60, max_takeovers=2)
    table.request("manual/1", "manual", "ann")
    table.request("manual/2", "manual", "ann")
    barrier = threading.Barrier(8)
    won = []

    def claim(name):
        barrier.wait()
        lease = table.claim(name)
        if lease is not None:
            won.append(lease)

    threads = [threading.Thread(target=claim, args=(f"runner {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    assert len(won) == 1


class TwoRunners(RuleBasedStateMachine):
    """Whatever two runners do and however long they sleep, only the newest claim writes."""

    @initialize()
    def begin(self):
        self.clock = Clock()
        self.engine = create_engine("sqlite://")
        self.table = RunTable(self.engine, lease_s=60, max_takeovers=1, clock=self.clock)
        self.leases = {"one": None, "two": None}
        self.newest = {}  # run -> the token of its newest claim
        self.ended = set()
        self.slots = 0

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.dispose()

    @rule()
    def request(self):
        self.slots += 1
        assert self.table.request(f"manual/{self.slots}", "manual", "ann")[1]

    @rule(seconds=st.sampled_from([1, 30, 61, 200]))
    def sleep(self, seconds):
        self.clock.pass_s(seconds)

    @rule(runner=st.sampled_from(["one", "two"]))
    def claim(self, runner):
        lease = self.table.claim(runner)
        if lease is not None:
            assert lease.token > self.newest.get(lease.run, 0)
            assert lease.run not in self.ended
            self.newest[lease.run] = lease.token
            self.leases[runner] = lease

    def holds(self, runner):
        lease = self.leases[runner]
        return self.newest[lease.run] == lease.token and self.table.get(lease.run).state == "running"

    @precondition(lambda self: any(self.leases.values()))
    @rule(runner=st.sampled_from(["one", "two"]), verb=st.sampled_from(["beat", "release", "finish"]))
    def write(self, runner, verb):
        lease = self.leases[runner]
        if lease is None:
            return
        verbs = {
            "beat": lambda: self.table.heartbeat(lease, runner, lease.token, 99),
            "release": lambda: self.table.release(lease),
            "finish": lambda: self.table.finish(lease, "refused", error=runner),
        }
        before = self.table.get(lease.run)
        if self.holds(runner):
            verbs[verb]()
            if verb == "finish":
                self.ended.add(lease.run)
        else:
            with pytest.raises(LeaseLostError):
                verbs[verb]()
            assert self.table.get(lease.run) == before

    @invariant()
    def at_most_one_run_is_running(self):
        if hasattr(self, "table"):
            assert self.table.count_by_state().get("running", 0) <= 1


TwoRunners.TestCase.settings = hypothesis_settings(stateful_step_count=25)
test_two_runners_never_both_hold_a_run = pytest.mark.slow(TwoRunners.TestCase)


@pytest.fixture
def long_leased(either_database):
    engine = create_engine(either_database)
    yield RunTable(engine, lease_s=3600, max_takeovers=2)
    engine.dispose()


def test_a_stage_is_in_the_row_long_before_the_lease_must_be_renewed(long_leased):
    run, _ = long_leased.request("manual/1", "manual", "ann")
    lease = long_leased.claim("here")
    shown = []
    with LeaseHeartbeat(long_leased, lease, 3600, threading.Event(), lambda *at: shown.append(at)) as beat:
        beat.report("features", 3, 10)
        deadline = time.monotonic() + 120
        while (row := long_leased.get(run.id)).stage != "features":
            assert time.monotonic() < deadline, row
            time.sleep(0.05)
    assert (row.done, row.total) == (3, 10)
    assert shown == [("features", 3, 10)]


# The updater's token goes to deploy and to nobody else.
_PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture
def proxy(monkeypatch):
    """Listens where every proxy variable points to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        for name in _PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{listening.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield listening


@pytest.fixture
def deploy(proxy):
    """Answers that nothing is live; gives its address and the tokens that it was sent."""
    tokens = []

    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self):
            tokens.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"null")

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", tokens
        server.shutdown()
        thread.join()


def test_updater_and_command_line_pass_by_a_proxy_that_the_environment_names(proxy, deploy):
    url, tokens = deploy
    with DeployClient(UpdaterSettings(deploy_url=url, deploy_token=SecretStr("s3cret"))) as client:
        assert client.live_digest() is None
    with Client(DeploySettings(url=url, token=SecretStr("s3cret")), "ada") as command_line:
        assert command_line.rollout() is None
    assert tokens == ["Bearer s3cret"] * 2
    with pytest.raises(BlockingIOError):
        proxy.accept()


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403])
def test_an_update_waits_where_deploy_refuses_its_token(deploy, monkeypatch, status):
    answer = BaseHTTPRequestHandler.send_response
    monkeypatch.setattr(BaseHTTPRequestHandler, "send_response", lambda self, _: answer(self, status))
    with (
        DeployClient(UpdaterSettings(deploy_url=deploy[0])) as client,
        pytest.raises(DeployUnavailableError, match=rf"{NOT_LET_IN} \(HTTP {status}\): restart"),
    ):
        client.live_digest()
