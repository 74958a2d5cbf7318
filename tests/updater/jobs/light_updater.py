"""`python -m updater` with its service account in FOLDER; started by test_jobs.py."""

import sys
from pathlib import Path

from updater import kubernetes
from updater.__main__ import main

if __name__ == "__main__":
    kubernetes.SERVICE_ACCOUNT = Path(sys.argv.pop())
    code = main()
    assert "torch" not in sys.modules, "the schedule needs no torch"
    sys.exit(code)
