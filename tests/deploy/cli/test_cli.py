"""The command line against a real server in this process, without a broker."""

import json
import os
import re
import subprocess
import sys
import threading
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from deploy.cli.main import main
from deploy.doctor import host
from deploy.doctor.diagnosis import examine
from deploy.doctor.host import CheckError
from deploy.local import commands
from deploy.local.record import free_ports, stack_settings, write_environment
from deploy.releases.signing import OFF


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
    "line",
    [
        "nonsense",
        "approve",
        "status --nonsense",
        "label only-one",
        "label bcd234 x-0-1 blend",
        "undo x",
        "dead-letters shows",
    ],
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
    assert "--unseen nobody: the families are upsampled" in terminal.fails(
        "demo", "--unseen", "nobody", code=2
    )


def test_up_starts_nothing_by_a_wrong_setting(terminal, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_UPDATER_WITHOUT_KINDS", "{x")
    assert "FORGEWATCH_UPDATER_WITHOUT_KINDS: not the JSON" in terminal.fails("up", "--empty", code=2)
    assert not Path(".forgewatch/stack.json").exists()


def test_a_stacks_settings_that_are_no_text_are_told(terminal):
    Path(".forgewatch").mkdir(exist_ok=True)
    Path(".forgewatch/stack.env").write_bytes(bytes(range(128, 200)))
    assert "stack.env: no settings of a stack; remove it" in terminal.fails("status")


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


# Whether releases are signed is said in one line, and one that is not can be signed where it lies.
@pytest.fixture
def trusting(signer, settings, monkeypatch):
    """The signer alone is trusted, by every process."""
    monkeypatch.setenv("FORGEWATCH_DETECTOR_TRUSTED_SIGNERS", str(signer.certificate))


@pytest.fixture
def unsigned(trusting, services, proposed, monkeypatch):
    """What was proposed before anybody was trusted by name."""
    with monkeypatch.context() as before:
        before.setattr(services.artifacts, "_signers", None)
        return proposed()


def test_where_nothing_is_signed_status_and_doctor_say_so_in_a_line(answered):
    assert f"signatures  {OFF}" in answered.ok("status").splitlines()
    assert host.signatures() == OFF


@pytest.mark.parametrize("signed", [False, True])
def test_what_is_said_of_a_stack_that_was_started_has_the_same_line(signer, tmp_path, monkeypatch, signed):
    if signed:
        monkeypatch.setenv("FORGEWATCH_DETECTOR_TRUSTED_SIGNERS", str(signer.certificate))
    settings = stack_settings(tmp_path / "run", free_ports(), "unix:/s", tmp_path / "store", {})
    write_environment(tmp_path / "stack.env", settings)
    told = StringIO()
    commands.print_endpoints(tmp_path, Console(file=told, width=200))
    said = "on: CN=updater until 20" if signed else OFF
    assert any(line.startswith(f"signatures       {said}") for line in told.getvalue().splitlines())


def test_doctor_says_who_may_sign_and_until_when(trusting):
    assert host.signatures().startswith("on: CN=updater until 20")


@pytest.mark.parametrize("until", [-1, 29])
def test_doctor_finds_a_last_key_that_expires_soon(make_signer, monkeypatch, until):
    made = make_signer(since=-60, until=until)
    monkeypatch.setenv("FORGEWATCH_DETECTOR_TRUSTED_SIGNERS", str(made.certificate))
    with pytest.raises(CheckError, match="the last trusted key expires"):
        host.signatures()


def test_doctor_finds_a_key_that_cannot_sign_and_signers_that_cannot_be_read(signer, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_UPDATER_SIGNING_KEY", str(signer.certificate))
    with pytest.raises(CheckError, match="the signing key"):
        host.signatures()
    monkeypatch.delenv("FORGEWATCH_UPDATER_SIGNING_KEY")
    monkeypatch.setenv("FORGEWATCH_DETECTOR_TRUSTED_SIGNERS", "nowhere.crt")
    with pytest.raises(CheckError, match=r"nowhere\.crt cannot be read"):
        host.signatures()


@pytest.mark.slow
@pytest.mark.bar("P1")
def test_an_unsigned_release_cannot_be_approved_as_it_is(
    unsigned, answered, services, signer, make_signer, bar
):
    bar.count(2)
    digest = unsigned.digest
    assert f"release {digest[:12]} is not signed" in answered.fails("approve", digest, "--as", "ada")
    other = make_signer("other").key
    assert "Key mismatch" in answered.fails("release", "sign", digest, "--key", str(other))
    assert "is signed with" in answered.ok("release", "sign", digest, "--key", str(signer.key))
    answered.ok("approve", digest, "--as", "ada")
    assert services.artifacts.evidence(digest).digest == digest
    assert "signatures  on: CN=updater until" in answered.ok("status")


@pytest.mark.slow
def test_a_server_that_trusts_nobody_takes_a_first_signature_alone(answered, proposed, signer, make_signer):
    digest = proposed().digest
    answered.ok("release", "sign", digest, "--key", str(signer.key))
    said = answered.fails("release", "sign", digest, "--key", str(make_signer().key))
    assert "it keeps the signature that the release has" in said


@pytest.fixture
def nothing_set(monkeypatch, tmp_path):
    """An empty folder, and no variable that says where anything is."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FORGEWATCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FORGEWATCH_DEPLOY_KAFKA_TIMEOUT_S", "1")
    return monkeypatch


OF_DEPLOY = {"deploy server", "clock", "ledger", "artifacts", "lag"}
OF_OTHERS = {"databases", "broker", "topics", "processes", "served release", "releases topic"}


def test_the_doctor_finds_nothing_wrong_with_what_only_others_know_the_address_of(nothing_set):
    nothing_set.setenv("FORGEWATCH_DEPLOY_URL", f"http://127.0.0.1:{free_ports().deploy}")
    found = {name: examine(name) for name in OF_DEPLOY | OF_OTHERS | {"supervisor", "alerts"}}
    assert {name for name, each in found.items() if each.verdict == "WRONG"} == OF_DEPLOY
    # A stack of this machine may have the default addresses of the others.
    assert {"databases", "supervisor", "alerts"} <= {name for name, each in found.items() if not each.here}
    assert found["databases"].found == "FORGEWATCH_DEPLOY_DATABASE_URL is not set"


def test_without_any_address_what_does_not_answer_is_wrong(nothing_set):
    """The control of the test above: there is one stack then, and its addresses are the defaults."""
    assert examine("databases").verdict == "WRONG"


def test_torchserve_is_sought_where_its_socket_has_a_folder(nothing_set, tmp_path):
    nothing_set.setenv("FORGEWATCH_DETECTOR_TORCHSERVE_URL", "http://127.0.0.1:9")
    nothing_set.setenv(
        "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL", f"unix:{tmp_path}/pod/management.sock"
    )
    assert examine("TorchServe").verdict == "not here"
    (tmp_path / "pod").mkdir()
    nothing_set.setenv("FORGEWATCH_DEPLOY_URL", f"http://127.0.0.1:{free_ports().deploy}")
    assert examine("TorchServe").verdict == "WRONG"
