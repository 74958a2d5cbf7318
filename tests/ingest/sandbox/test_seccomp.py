"""What a confined process can still do, tried from inside it, and the filter as an algebra of its own."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.sandbox import seccomp

KILL, ALLOW = 0x80000000, 0x7FFF0000
X86, ARM = "x86_64", "aarch64"
ARCH = {X86: 0xC000003E, ARM: 0xC00000B7}
WORDS = st.integers(0, 2**64 - 1)
# Numbers of calls by which a process reaches beyond itself, on x86-64 and aarch64.
REACHING = {
    **{"open": (2, 56), "openat": (257, 56), "openat2": (437, 437), "mount": (165, 40), "ioctl": (16, 29)},
    **{"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211)},
    **{"recvmsg": (47, 212), "execve": (59, 221), "execveat": (322, 281), "fork": (57, 435)},
    **{"vfork": (58, 435), "clone3": (435, 435), "kill": (62, 129), "tkill": (200, 130)},
    **{"tgkill": (234, 131), "pidfd_send_signal": (424, 424), "ptrace": (101, 117)},
    **{"process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "prctl": (157, 167)},
    **{"prlimit64": (302, 261), "setrlimit": (160, 164), "seccomp": (317, 277), "bpf": (321, 280)},
    **{"io_uring_setup": (425, 425), "memfd_create": (319, 279), "pkey_mprotect": (329, 288)},
    **{"unshare": (272, 97), "setns": (308, 268), "rt_sigaction": (13, 134), "userfaultfd": (323, 282)},
    **{"shmget": (29, 194)},
}
ATTEMPTS = """
import ctypes, json, mmap, os, resource, signal, socket, sys
from ingest.sandbox import seccomp
libc = ctypes.CDLL(None, use_errno=True)
port, parent = int(sys.argv[2]), os.getppid()
opened = socket.socket()
bytes_ = ctypes.create_string_buffer(8)
here = (ctypes.c_void_p * 2)(ctypes.addressof(bytes_), 8)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
def fork():
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
def execute():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
attempts = {
    "a socket": lambda: socket.socket().close(),
    "connect": lambda: opened.connect(("127.0.0.1", port)),
    "open to read": lambda: open("/proc/self/status").close(),
    "open to write": lambda: open("/dev/null", "w").close(),
    "read the parent's environment": lambda: open(f"/proc/{parent}/environ", "rb").read(),
    "fork": fork,
    "exec": execute,
    "kill": lambda: os.kill(parent, 0),
    "ptrace": lambda: checked(libc.ptrace(0, 0, None, None)),
    "process_vm_readv": lambda: checked(libc.process_vm_readv(os.getpid(), here, 1, here, 1, 0)),
    "lift a limit": lambda: checked(libc.setrlimit(resource.RLIMIT_CORE, (ctypes.c_ulong * 2)(0, 0))),
    "be dumpable": lambda: checked(libc.prctl(4, 1, 0, 0, 0)),
    "handle a signal": lambda: signal.signal(signal.SIGXCPU, signal.SIG_IGN),
    "run memory": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC).close(),
    "memfd_create": lambda: os.close(os.memfd_create("x")),
    "another namespace": lambda: checked(libc.unshare(0)),
}
if sys.argv[1] == "confined":
    seccomp.confine()
done = {}
for name, attempt in attempts.items():
    try:
        attempt()
        done[name] = 0
    except OSError as error:
        done[name] = error.errno
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def attempted(how, port):
    command = [sys.executable, "-c", ATTEMPTS, how, str(port)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


def test_a_confined_process_can_reach_nothing(listener):
    assert set(attempted("confined", listener).values()) == {1}  # EPERM


def test_the_same_attempts_succeed_without_the_filter(listener):
    assert set(attempted("free", listener).values()) == {0}


def test_threads_that_ran_before_and_that_start_later_are_confined_too():
    program = (
        "import threading\n"
        "from ingest.sandbox import seccomp\n"
        "go, refused = threading.Event(), []\n"
        "def reach():\n"
        "    go.wait()\n"
        "    try: open('/dev/null')\n"
        "    except PermissionError: refused.append(1)\n"
        "before = threading.Thread(target=reach); before.start()\n"
        "seccomp.confine()\n"
        "after = threading.Thread(target=reach); after.start()\n"
        "go.set(); before.join(); after.join()\n"
        "assert len(refused) == 2\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=180)


@pytest.mark.slow
def test_a_kernel_that_refuses_the_filter_means_no_decoding_and_one_line_says_so():
    # The kernel's part is played by a filter that refuses filters: it is inherited by the child.
    program = (
        "import ctypes, struct\n"
        "from ingest.sandbox import seccomp\n"
        "from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError\n"
        "from ingest.settings import IngestSettings\n"
        "real, I = seccomp.program, seccomp.Instruction\n"
        "number = seccomp._SECCOMP[list(seccomp._MACHINES).index(__import__('platform').machine())]\n"
        "seccomp.program = lambda _: (I(32, 0, 0, 0), I(21, 0, 1, number), I(6, 0, 0, 0x50016),"
        " I(6, 0, 0, 0x7fff0000))\n"
        "seccomp.confine()\n"
        "try:\n"
        "    with Sandbox(IngestSettings()): print('open')\n"
        "except SandboxUnavailableError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout == (
        "media is decoded in confined processes only: "
        "the kernel refuses a filter of system calls (seccomp): Invalid argument\n"
    )


def judged(machine, arch, number, arguments, program=seccomp.program):
    """Run the filter as the kernel would (classic BPF over struct seccomp_data)."""
    data = number.to_bytes(4, "little") + arch.to_bytes(4, "little") + bytes(8)
    data += b"".join(argument.to_bytes(8, "little") for argument in arguments)
    lines, at, accumulator = program(machine), 0, 0
    while True:
        code, if_true, if_false, k = lines[at]
        at += 1
        if code == 0x06:
            return k
        if code == 0x20:
            accumulator = int.from_bytes(data[k : k + 4], "little")
            continue
        holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
        at += if_true if holds else if_false


@pytest.mark.parametrize("machine", [X86, ARM])
@given(number=st.integers(0, 600), arguments=st.tuples(*[WORDS] * 6), data=st.data())
def test_no_arguments_make_a_call_that_reaches_out_pass(machine, number, arguments, data):
    name = data.draw(st.sampled_from(sorted(REACHING)))
    reaching = REACHING[name][machine == ARM]
    assert judged(machine, ARCH[machine], reaching, arguments) & 0xFFFF0000 == 0x00050000
    foreign = data.draw(WORDS.map(lambda word: word & 0xFFFFFFFF).filter(lambda arch: arch != ARCH[machine]))
    assert judged(machine, foreign, number, arguments) == KILL
    assert judged(X86, ARCH[X86], number | 0x40000000, arguments) == KILL


@pytest.mark.parametrize(("machine", "numbers"), [(X86, (9, 10, 56)), (ARM, (222, 226, 220))])
@given(arguments=st.tuples(*[WORDS] * 6))
def test_memory_is_never_executable_and_no_clone_but_a_thread(machine, numbers, arguments):
    for number in numbers[:2]:
        passes = judged(machine, ARCH[machine], number, arguments) == ALLOW
        assert passes == (not arguments[2] & 4)
    thread = (0x3D0F00, *arguments[1:])
    assert judged(machine, ARCH[machine], numbers[2], thread) == ALLOW
    if arguments[0] & 0xFFFFFFFF != 0x3D0F00:
        assert judged(machine, ARCH[machine], numbers[2], arguments) != ALLOW


@pytest.mark.parametrize(
    ("column", "header"), [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")]
)
def test_numbers_are_the_kernels(column, header):
    file = Path("/usr/include") / header
    if not file.exists():
        pytest.skip("the kernel's headers are not here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text())
    kernel = {name: int(number) for name, number in found}
    ours = seccomp._ALLOWED | {
        "mmap": seccomp._MMAP,
        "mprotect": seccomp._MPROTECT,
        "clone": seccomp._CLONE,
        "clone3": seccomp._CLONE3,
        "seccomp": seccomp._SECCOMP,
    }
    assert {name: numbers[column] for name, numbers in ours.items()} == {name: kernel[name] for name in ours}
    for name, numbers in REACHING.items():
        if name in kernel:
            assert numbers[column] == kernel[name], name


@pytest.mark.parametrize("machine", [X86, ARM])
@given(arguments=st.tuples(*[WORDS] * 6))
def test_the_process_that_forks_may_fork_and_reaches_nothing(machine, arguments):
    def passes(number, arch=ARCH[machine]):
        return judged(machine, arch, number, arguments, seccomp.forking_program)

    column = machine == ARM
    for name, numbers in seccomp._REACHING_OUT.items():
        assert REACHING[name][column] == numbers[column] or numbers[column] is None
        if numbers[column] is not None:
            assert passes(numbers[column]) & 0xFFFF0000 == 0x00050000
            assert passes(numbers[column], ARCH[X86 if column else ARM]) == KILL
    for needed in (*seccomp._ALLOWED.values(), seccomp._CLONE, REACHING["kill"], REACHING["seccomp"]):
        assert passes(needed[column]) == ALLOW
    if machine == X86:
        assert passes(REACHING["open"][0] | 0x40000000) == KILL


def test_another_machine_is_refused():
    with pytest.raises(seccomp.SeccompError, match="riscv64"):
        seccomp.program("riscv64")
