"""The processes that share the tests of a run."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PLUGINS = Path(__file__).parent / "plugins"
TEST = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(8))
def test_it(number):
    with pathlib.Path(os.environ["SEEN"]).open("a") as seen:
        seen.write(f"{__file__} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


def test_a_file_is_one_processs_and_what_shares_servers_too(tmp_path):
    for name in ("system/loop/test_a.py", "system/test_b.py", "test_c.py", "test_d.py", "test_e.py"):
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TEST)
    seen = tmp_path / "seen"
    command = [sys.executable, "-m", "pytest", "-p", "sharing", "-n2", "--dist=loadscope", "--rootdir=."]
    environment = os.environ | {"SEEN": str(seen), "PYTHONPATH": str(PLUGINS), "PYTEST_ADDOPTS": ""}
    options = ["--rootdir=.", "--import-mode=importlib", "--no-loadscope-reorder", "tests"]
    subprocess.run([*command, *options], cwd=tmp_path, env=environment, check=True, timeout=180)
    workers = defaultdict(set)
    for line in seen.read_text().splitlines():
        file, worker = line.split()
        workers["system" if "system" in Path(file).parts else file].add(worker)
    assert len(workers) == 4
    assert all(len(of_one) == 1 for of_one in workers.values())
    assert len(set.union(*workers.values())) == 2
