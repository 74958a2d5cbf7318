"""The command line against a real server in this process, without a broker."""

import io
import json
import os
import re
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.cli.main import main


@pytest.mark.slow
def test_status_loads_neither_torch_nor_kafka(answered):
    code = (
        "import sys; from deploy.cli.main import main; code = main(['status']);"
        "heavy = {'torch', 'kafka', 'sqlalchemy', 'onnxruntime'} & sys.modules.keys();"
        "sys.exit(code or ' '.join(heavy) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_status_works_with_half_of_the_system_down(answered, services, proposed):
    artifact = proposed()
    out = answered.ok("status")
    assert artifact.digest[:12] in out
    assert "no broker answers" in out
    assert answered.json("status")["proposed"][0]["digest"] == artifact.digest
    answered.json("update", "--as", "ada")
    lease = services.runs.claim("a test")
    assert lease is not None
    services.runs.finish(lease, "proposed", candidate=artifact.digest)
    assert re.search(r"1 +proposed ", answered.ok("status"))
    answered.ok("approve", artifact.digest, "--plan", "now")
    assert re.search(r"1 +live ", answered.ok("status")), "it is not proposed any more"


def test_an_update_is_asked_for_and_a_failed_one_fails_the_command(answered, services):
    run = answered.json("update", "--as", "ada")
    assert (run["state"], run["requested_by"]) == ("queued", "ada")
    lease = services.runs.claim("a test")
    assert lease is not None
    services.runs.finish(lease, "failed", error="no exemplars")

    def fail_the_next():
        while (next_lease := services.runs.claim("a test")) is None:
            threading.Event().wait(0.05)
        services.runs.finish(next_lease, "refused", error="nothing new to learn")

    runner = threading.Thread(target=fail_the_next)
    runner.start()
    assert "refused: nothing new to learn" in answered.fails("update", "--follow")
    runner.join()


def test_empty_lists_say_so(answered):
    for command in ("releases", "clusters", "labels"):
        assert "none" in answered.ok(command)
        assert answered.json(command) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("label", "nothing", "blend"), "no exemplar"),
        (("label", "bcd234", "blend"), "cluster bcd234 is not in the list"),
        (("label", "a", "b", "not a name"), "no family name"),
        (("sheet", "nothing", "-o", "x.png"), "no cluster"),
        (("undo", "7"), "no label 7"),
        (("rollback", "--reason", "x"), "no earlier release"),
        (("score", "x.jpg"), "no release is live"),
        (("verdicts",), "no broker answers"),
        (("send", "x.jpg"), "no broker answers"),
        (("import", "nowhere"), "no folder"),
        (("try", "x.jpg"), "no folder: `forgewatch score FILE`"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(answered, arguments, told):
    assert told in answered.fails(*arguments)


@pytest.mark.parametrize(
    "command", ["status", "releases", "clusters", "labels", "rollback --reason x", "update"]
)
def test_a_server_that_is_down_is_one_line(terminal, command):
    assert "does not answer" in terminal.fails(*command.split())


@pytest.mark.parametrize(
    "line", ["none", "approve", "status --no", "label x", "label bcd234 x-0-1 y", "undo x", "dead-letters x"]
)
def test_a_wrong_command_is_one_line_and_exit_code_2(terminal, line):
    terminal.fails(*line.split(), code=2)


@pytest.mark.parametrize(
    ("variable", "value", "command"),
    [
        ("FORGEWATCH_DEPLOY_PORT", "much", "status"),
        ("FORGEWATCH_DEPLOY_HEALTH_URLS", "no json", "status"),
        ("FORGEWATCH_INGEST_MAX_PIXELS", "-1", "verdicts"),
        ("FORGEWATCH_INGEST_SECURITY_PROTOCOL", "NONE", "verdicts"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(terminal, monkeypatch, variable, value, command):
    monkeypatch.setenv(variable, value)
    assert variable in terminal.fails(command, code=2)


@pytest.mark.parametrize("command", ["demo", "throughput"])
def test_a_report_that_cannot_be_written_is_told_before_the_work(terminal, tmp_path, command):
    assert "is a folder: name a file" in terminal.fails(command, "--report", str(tmp_path))


def test_an_unknown_family_of_the_demo_is_a_wrong_command(terminal):
    refused = terminal.fails("demo", "--unseen", "nobody", code=2)
    assert "--unseen nobody: the families are upsampled" in refused


def test_up_starts_nothing_by_a_wrong_setting(terminal, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_UPDATER_WITHOUT_KINDS", "{x")
    assert "FORGEWATCH_UPDATER_WITHOUT_KINDS: not the JSON" in terminal.fails("up", "--empty", code=2)
    assert not Path(".forgewatch/stack.json").exists()


def test_a_stacks_settings_that_are_no_text_are_told(terminal):
    Path(".forgewatch").mkdir(exist_ok=True)
    Path(".forgewatch/stack.env").write_bytes(bytes(range(128, 200)))
    assert "stack.env: no settings of a stack; remove it" in terminal.fails("status")


def test_a_purge_that_is_not_confirmed_stops_nothing(terminal, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("deploy.local.commands.down", lambda **_: pytest.fail("it was stopped"))
    assert terminal.fails("down", "--purge", code=130) == "forgewatch: not confirmed"


def test_topics_without_a_broker_says_what_to_do(terminal):
    assert "start a broker, or see the FORGEWATCH_INGEST_" in terminal.fails("topics")


def test_the_file_of_a_running_stack_gives_defaults_and_the_environment_wins(terminal, monkeypatch):
    Path(".forgewatch").mkdir()
    Path(".forgewatch/stack.env").write_text(
        "# written by up\nFORGEWATCH_DEPLOY_URL=http://127.0.0.1:2\nPATH=/nowhere\n\n"
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS=127.0.0.1:3\n"
    )
    monkeypatch.setenv("FORGEWATCH_INGEST_BOOTSTRAP_SERVERS", "127.0.0.1:4")
    monkeypatch.delenv("FORGEWATCH_DEPLOY_URL")
    path = os.environ["PATH"]
    assert "http://127.0.0.1:2 " in terminal.fails("status")
    assert "127.0.0.1:4" in terminal.fails("verdicts")
    assert os.environ["PATH"] == path
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", "restored by monkeypatch")


@pytest.mark.slow
def test_doctor_finds_what_is_down_says_what_to_do_and_fails(answered, capsys):
    assert main(["doctor", "--json"]) == 1
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert not found["broker"]["ok"]
    assert found["broker"]["advice"]
    for healthy in ("settings", "disk", "databases", "clock"):
        assert found[healthy]["ok"], found[healthy]
    assert "without the lock file" not in found["dependencies"]["found"]
    assert main(["doctor"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_control_characters_of_a_hostile_name_do_not_reach_the_terminal(answered, proposed):
    artifact = proposed()
    answered.ok("reject", artifact.digest, "--reason", "\x1b[2J[red]evil[/red]\x07")
    out = answered.ok("releases")
    assert "\x1b" not in out
    assert "[red]evil[/red]" in out


def test_without_a_command_the_help_is_shown_and_the_version_when_asked(terminal):
    assert "Usage: forgewatch" in terminal.ok()
    assert terminal.ok("--version") == f"forgewatch {version('forgewatch')}\n"
