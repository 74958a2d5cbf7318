"""A terminal, and one with a server."""

import json

import pytest

from deploy.cli.main import main
from deploy.local.processes import free_port
from deploy.releases import approval


class Terminal:
    """Runs commands as a person would, and keeps what they print."""

    def __init__(self, capsys):
        self._capsys = capsys

    def ok(self, *arguments):
        code = main(arguments)
        captured = self._capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    def json(self, *arguments):
        return json.loads(self.ok(*arguments, "--json").splitlines()[-1])

    def fails(self, *arguments, code=1):
        """One line on standard error and the exit code, or the test fails."""
        assert main(arguments) == code
        lines = self._capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("forgewatch: ")
        return lines[0]


@pytest.fixture
def terminal(settings, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", f"http://127.0.0.1:{free_port()}")
    return Terminal(capsys)


@pytest.fixture
def answered(served, terminal, monkeypatch):
    """The terminal, with a server at the address that its settings name."""
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", served)
    return terminal


@pytest.fixture
def proposed(services, make_artifact, candidate_of):
    """Puts an artifact and proposes it, by the functions below the API."""

    def put_and_propose(parent=None, **figures):
        artifact = make_artifact(parent, **figures)
        for file in (*artifact.manifest.files, "manifest.json"):
            with services.artifacts.upload(artifact.digest, file) as upload:
                upload.write((artifact.folder / file).read_bytes())
                upload.commit()
        candidate, evidence = candidate_of(artifact), services.artifacts.evidence(artifact.digest)
        services.ledger.append(
            lambda history: approval.propose(history, candidate, evidence, services.updater, "updater")
        )
        return artifact

    return put_and_propose


@pytest.fixture
def fails(capsys):

    def fails(*words, code=1):
        assert main(["benchmark", *map(str, words)]) == code
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("forgewatch: ")
        return lines[0]

    return fails
