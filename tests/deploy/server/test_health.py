"""What the deploy server finds of the processes of a stack, by the answers that they really give."""

from deploy.server.health import processes_health
from ingest.process.health import Heartbeat, serve_health


def test_a_process_that_is_not_ready_lives_and_says_why():
    heartbeat = Heartbeat(max_age_s=60)
    heartbeat.beat("no release is served yet")
    with serve_health("127.0.0.1", 0, heartbeat) as address:
        (found,) = processes_health({"detector": f"{address}/metrics"})
        assert (found.alive, found.problem) == (True, "no release is served yet")
        heartbeat.beat()
        (found,) = processes_health({"detector": f"{address}/metrics"})
        assert (found.alive, found.problem) == (True, None)


def test_a_process_whose_loop_is_stuck_does_not_live_though_it_answers():
    with serve_health("127.0.0.1", 0, Heartbeat(max_age_s=-1)) as address:
        (found,) = processes_health({"memory": f"{address}/metrics"})
    assert not found.alive
    assert "the loop has been silent" in str(found.problem)
