"""A network of the tasks that two processes train is that of one: a batch is shared, and drawn alike."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("train_in_processes.py")


@pytest.mark.slow
def test_two_processes_train_the_network_of_one(tmp_path: Path) -> None:
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    found = []
    for processes in (1, 2):
        file = tmp_path / f"{processes}.safetensors"
        command = [*launched, f"--nproc-per-node={processes}", str(SCRIPT), str(file)]
        subprocess.run(command, check=True, timeout=300)
        found.append(load_file(file))
    one, two = found
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=1e-5, rtol=1e-4)
