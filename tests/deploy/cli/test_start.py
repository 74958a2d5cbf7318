"""What a command loads before it does anything: a person waits for it each time."""

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


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """The exit code, and the packages that a command leaves loaded."""
    code = LOADED.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    return done.returncode, set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("status", "--help"), ("benchmark", "cddb", "--help")])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code, names = loaded(*arguments)
    assert code == 0
    assert names & HEAVY == set()


def test_what_is_loaded_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGEWATCH_MEMORY_DATABASE_URL", "nosuch://host/name")
    code, names = loaded("migrate")
    assert code == 2
    assert "sqlalchemy" in names
