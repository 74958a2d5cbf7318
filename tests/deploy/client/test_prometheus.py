import pytest

from deploy.client.prometheus import PrometheusError, firing_alerts
from deploy.doctor.diagnosis import examine
from deploy.local.processes import free_port


def test_where_nobody_answers_it_says_so() -> None:
    with pytest.raises(PrometheusError, match="does not answer as Prometheus does"):
        firing_alerts(f"http://127.0.0.1:{free_port()}")


def test_the_doctor_is_content_without_a_prometheus_but_not_with_one_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FORGEWATCH_DEPLOY_PROMETHEUS_URL", raising=False)
    assert examine("alerts").ok
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROMETHEUS_URL", f"http://127.0.0.1:{free_port()}")
    found = examine("alerts")
    assert not found.ok
    assert found.advice
