import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Two lists, one after the other, each of eight matrices of 8 MiB; beside each matrix something small is kept.
_LISTS = """
import sys
from memory.process import return_large_blocks
if sys.argv[1] == "returned":
    return_large_blocks()
kept = []
for _ in range(2):
    matrices = []
    for _ in range(8):
        matrices.append(bytearray(2**23))
        kept.append(bytes(2**16))
    del matrices
held = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
print(int(held.split()[1]) // 1024)
"""


def left_mib(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _LISTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_a_list_of_clusters_took_goes_back_to_the_system():
    assert left_mib("returned") + 60 < left_mib("kept")
