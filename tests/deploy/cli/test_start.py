"""What a command loads before it does anything, since a person waits for it, and how a signal ends it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = {"torch", "timm", "onnx", "onnxruntime", "sklearn", "scipy", "faiss", "av", "dlib", "matplotlib"} | {
    *("sqlalchemy", "alembic", "fastapi", "uvicorn", "kafka", "jgo", "PIL", "skimage", "supervisor", "ts")
}


LOADED = (
    "import sys; from deploy.cli.main import main; code = main({arguments!r});"
    "print(*(name.partition('.')[0] for name in sys.modules), sep='\\n', file=sys.stderr); sys.exit(code)"
)


def loaded(*arguments):
    """The exit code, and the packages that a command leaves loaded."""
    code = LOADED.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    return done.returncode, set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("status", "--help"), ("benchmark", "cddb", "--help")])
def test_help_loads_nothing_heavy(arguments):
    code, names = loaded(*arguments)
    assert code == 0
    assert names & HEAVY == set()


def test_what_is_loaded_would_be_seen(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_MEMORY_DATABASE_URL", "nosuch://host/name")
    code, names = loaded("migrate")
    assert code == 2
    assert "sqlalchemy" in names


ENDS_ITSELF = """
import os, signal, sys
from deploy.cli import main
@main.app.command("hold")
def hold():
    try:
        os.kill(os.getpid(), signal.{first})
    finally:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), each)
        print("nothing is left")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background
sys.exit(main.main(["hold"]))
"""


@pytest.mark.parametrize(("first", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_second_signal_does_not_cut_short_how_a_command_ends_what_it_started(first, code):
    program = [sys.executable, "-c", ENDS_ITSELF.format(first=first)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "nothing is left\n"), ended.stderr
    assert ended.stderr == "forgewatch: stopped\n"
