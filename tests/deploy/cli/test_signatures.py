"""Whether releases are signed is said in one line, and one that is not can be signed where it lies."""

import os
from io import StringIO

import pytest
from rich.console import Console

from deploy.doctor import host
from deploy.doctor.diagnosis import examine
from deploy.doctor.host import CheckError
from deploy.local import commands
from deploy.local.record import free_ports, stack_settings, write_environment
from deploy.releases.signing import OFF


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
