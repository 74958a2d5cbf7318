"""A folder of releases is read by MLflow as a registry, and its model says what the release says."""

import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from deploy.cli.main import main
from deploy.client.mlflow import export
from deploy.client.prometheus import PrometheusError, firing_alerts
from deploy.doctor.diagnosis import examine
from deploy.local.processes import free_port
from deploy.settings import DeploySettings
from detector.records import Rollout
from detector.release.artifact import MODEL, PROBE
from detector.release.tensors import read_probe

OTHER, THIRD = "b" * 64, "c" * 64


def rollout(stable, canary=None, previous=None):
    return Rollout(ledger="f" * 32, epoch=0, sequence=1, stable=stable, canary=canary, previous=previous)


def aliases(folder):
    return {path.name: path.read_text() for path in (folder / "models/forgewatch/aliases").glob("*")}


def test_each_release_is_one_version_and_the_aliases_are_of_what_serves_now(tmp_path, untrained_artifact):
    first, second = untrained_artifact, replace(untrained_artifact, digest=OTHER)
    assert export(first, tmp_path, rollout(first.digest), "live") == 1
    assert aliases(tmp_path) == {"champion": "1"}
    assert export(second, tmp_path, rollout(first.digest, canary=OTHER), "shadow") == 2
    assert aliases(tmp_path) == {"champion": "1", "challenger": "2"}
    assert export(first, tmp_path, rollout(OTHER, previous=first.digest), "retired") == 1
    assert aliases(tmp_path) == {"champion": "2", "previous": "1"}
    version = tmp_path / "models/forgewatch/version-1"
    assert (version / "tags/state").read_text() == "retired"
    assert (version / "tags/digest").read_text() == first.digest
    # What serves is not in the folder, and so no alias names it.
    export(first, tmp_path, rollout(THIRD), "expired")
    assert aliases(tmp_path) == {}
    export(first, tmp_path, None, "proposed")
    assert {path.name for path in (tmp_path / "models/forgewatch").glob("version-*")} == {
        "version-1",
        "version-2",
    }


def test_a_version_holds_the_graph_its_signature_and_what_its_scores_give(tmp_path, untrained_artifact):
    export(untrained_artifact, tmp_path, None, "proposed")
    model = tmp_path / "models/forgewatch/version-1/model"
    assert (model / "model.onnx").read_bytes() == (untrained_artifact.folder / MODEL).read_bytes()
    about = json.loads((model / "MLmodel").read_text())
    assert about["flavors"]["onnx"]["data"] == "model.onnx"
    assert about["metadata"] == {
        "release": untrained_artifact.digest,
        "classes": ["real", "blend", "upsampling"],
    }
    inputs = {each["name"]: each["tensor-spec"] for each in json.loads(about["signature"]["inputs"])}
    assert inputs == {
        "crops": {"dtype": "uint8", "shape": [-1, 64, 64, 3]},
        "pooling": {"dtype": "float32", "shape": [-1, -1]},
    }
    assert json.loads((model / "manifest.json").read_text())["gate"]["unknown_threshold"] == 2


def test_what_is_interrupted_leaves_no_half_version(tmp_path, untrained_artifact, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("deploy.client.mlflow._write_version", full)
        with pytest.raises(OSError, match="No space left"):
            export(untrained_artifact, tmp_path, None, "live")
    assert list((tmp_path / "models/forgewatch").iterdir()) == []
    assert export(untrained_artifact, tmp_path, None, "live") == 1


@pytest.fixture
def settings(settings, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_MAX_FILE_BYTES", str(2**30))
    return DeploySettings()


def test_a_release_is_exported_shown_and_shown_as_before(
    tmp_path, served, services, put, propose, untrained_artifact, monkeypatch, capsys
):
    propose(untrained_artifact)
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", served)
    short = untrained_artifact.digest[:12]
    assert main(["release", "export", short, "--mlflow", "out"]) == 0
    assert f"{short} is version 1 of the model forgewatch in out" in capsys.readouterr().out
    assert (Path("out") / "models/forgewatch/version-1/model/MLmodel").is_file()
    for arguments in ([short, "--json"], ["--json", short], ["show", short, "--json"]):
        assert main(["release", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["digest"] == untrained_artifact.digest
    Path("file").touch()
    assert main(["release", "export", short, "--mlflow", "file"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_mlflow_loads_it_by_its_alias_and_scores_as_the_release(tmp_path, untrained_artifact, monkeypatch):
    """An oracle that is not among the locked packages: it brings 60 others. Tried with 3.17.2."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    onnx = pytest.importorskip("mlflow.onnx", reason="mlflow is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    from onnxruntime import InferenceSession

    export(untrained_artifact, tmp_path, rollout(untrained_artifact.digest), "live")
    client = mlflow.MlflowClient(tracking_uri=str(tmp_path), registry_uri=str(tmp_path))
    version = client.get_model_version_by_alias("forgewatch", "champion")
    assert (version.version, version.tags["digest"], version.status) in (
        ("1", untrained_artifact.digest, "READY"),
        (1, untrained_artifact.digest, "READY"),
    )
    assert [found.version for found in client.search_model_versions("name='forgewatch'")] == [version.version]
    mlflow.set_tracking_uri(str(tmp_path))
    mlflow.set_registry_uri(str(tmp_path))
    asked, expected = read_probe(untrained_artifact.folder / PROBE, untrained_artifact.manifest.contract)
    graph = onnx.load_model("models:/forgewatch@champion")
    session = InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    by_graph = dict(zip((o.name for o in session.get_outputs()), session.run(None, dict(asked)), strict=True))
    by_function = mlflow.pyfunc.load_model("models:/forgewatch@champion").predict(dict(asked))
    for said in (by_graph, by_function):
        for name in ("logits", "energy", "unknown_score"):
            np.testing.assert_allclose(np.asarray(said[name]), expected[name], atol=1e-4, rtol=1e-4)


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
        def do_GET(self):
            self.send_response(200 if self.headers["Authorization"] == "Basic YWRhOmh1bkB0ZXIy" else 401)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format, *args): ...

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
