from pathlib import Path

import pytest

from detector.serving.torchserve_launch import Command, prepare
from ingest import NO_TELEMETRY

SECRETS = {"FORGEWATCH_DEPLOY_TOKEN": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter2", "PATH": "/bin"}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return prepare(
        tmp_path,
        port=8080,
        sockets=Path("/run/forgewatch"),
        model_store=tmp_path / "store",
        temporary=tmp_path,
        heap="-XX:MaxRAMPercentage=25",
        model_log=None,
        environment={**SECRETS, "FORGEWATCH_DETECTOR_MODEL_THREADS": "3"},
    )


def properties(folder: Path) -> dict[str, str]:
    lines = (folder / "config.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_only_inference_is_on_the_network_and_only_on_loopback(command, tmp_path):
    said = properties(tmp_path)
    assert said["inference_address"] == "http://127.0.0.1:8080"
    assert said["management_address"] == "unix:/run/forgewatch/management.sock"
    assert said["metrics_address"] == "unix:/run/forgewatch/metrics.sock"
    assert {said[f"grpc_{what}_address"] for what in ("inference", "management")} == {"127.0.0.1"}


def test_nothing_but_the_model_store_can_be_loaded_from(command, tmp_path):
    said = properties(tmp_path)
    assert said["model_store"] == str(tmp_path / "store")
    assert (said["load_models"], said["allowed_urls"]) == ("", "file:///nonexistent/.*")
    assert (said["install_py_dep_per_model"], said["enable_envvars_config"]) == ("false", "false")


def test_the_workers_learn_the_number_of_threads_and_no_secret(command):
    assert command.environment["FORGEWATCH_DETECTOR_MODEL_THREADS"] == "3"
    assert "hunter2" not in command.environment.values()


def test_the_workers_libraries_do_not_report_to_their_makers(command):
    assert NO_TELEMETRY.items() <= command.environment.items()


def test_what_the_workers_print_goes_where_it_is_said(command, tmp_path):
    assert '<Console name="model">' in (tmp_path / "log4j2.xml").read_text()
    prepare(
        tmp_path,
        port=8080,
        sockets=tmp_path,
        model_store=tmp_path,
        temporary=tmp_path,
        heap="-Xmx1g",
        model_log=tmp_path / "model.log",
    )
    assert 'fileName="model.log"' in (tmp_path / "log4j2.xml").read_text()


def test_the_jvm_gets_its_heap_before_the_class_that_it_runs(command):
    said = command.arguments
    assert said.index("-XX:MaxRAMPercentage=25") < said.index("org.pytorch.serve.ModelServer")
