from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from deploy.client.prometheus import PrometheusError, firing_alerts
from deploy.doctor.diagnosis import examine
from deploy.local.processes import free_port


def test_where_nobody_answers_it_says_so():
    with pytest.raises(PrometheusError, match="does not answer as Prometheus does"):
        firing_alerts(f"http://127.0.0.1:{free_port()}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"{}", "does not answer as Prometheus does"),
        (b"[1]", "does not answer as Prometheus does"),
        (b'{"data": [1]}', "has rules of another form"),
        (b'{"data": {"groups": [{"rules": [{"query": "up"}]}]}}', "has rules of another form"),
        (b'{"data": {"groups": []}}', "has none of the rules"),
    ],
)
def test_where_another_server_answers_it_says_so(answer, said):
    class Another(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["Authorization"] == "Basic YWRhOmh1bkB0ZXIy" else 401)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Another) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            for user, told in (("ada:hun%40ter2", said), ("ada:hunter2", "401 Unauthorized")):
                with pytest.raises(PrometheusError, match=told) as error:
                    firing_alerts(f"http://{user}@127.0.0.1:{server.server_port}")
                assert "hun" not in str(error.value)
        finally:
            server.shutdown()
            thread.join()


def test_the_doctor_is_content_without_a_prometheus_but_not_with_one_that_is_away(monkeypatch):
    monkeypatch.delenv("FORGEWATCH_DEPLOY_PROMETHEUS_URL", raising=False)
    assert examine("alerts").ok
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROMETHEUS_URL", f"http://127.0.0.1:{free_port()}")
    found = examine("alerts")
    assert not found.ok
    assert found.advice
