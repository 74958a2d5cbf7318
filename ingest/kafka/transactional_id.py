"""A transactional id for a worker that was given none: one that no other worker of the cluster has."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import count


@contextmanager
def own_transactional_id(group: str) -> Iterator[str]:
    """Yield GROUP-HOST-NUMBER with the lowest number that no process of this host holds; held until left.

    So it is the same after a restart, and the new producer ends what the one before it left open at once;
    under another id that would stay open, and hold its records back, until the transaction times out. It
    relies on hosts (in a cluster: pods) to have names of their own, and changes with the host's name.

    The number is held by a Linux abstract socket and not by a file: the kernel frees it with the process,
    and services with a folder for temporary files each, or containers on the host's network, share it.
    """
    host = socket.gethostname()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        for number in count():
            name = f"{group}-{host}-{number}"
            try:
                # A digest: names of sockets are shorter than a group's and a host's may be.
                held.bind(f"\0forgewatch.{sha256(name.encode()).hexdigest()}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                break
        yield name
