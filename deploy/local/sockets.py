"""The folder of a stack's unix sockets: for this user alone, and with a path that the kernel takes."""

import os
import shutil
import tempfile
from pathlib import Path

# The kernel's limit of 108 bytes for a socket's path, less its final zero byte.
_SOCKET_PATH_BYTES = 107
# supervisord binds a name with its process id (at most 4194304) first, and then links it.
_LONGEST_SOCKET = "supervisor.sock.4194304"


def socket_folder(folder: Path) -> Path:
    """An empty folder of mode 0700: `folder`/tmp, or one in the temporary folder where that lies too deep."""
    sockets = folder.absolute() / "tmp"
    if len(os.fsencode(sockets / _LONGEST_SOCKET)) > _SOCKET_PATH_BYTES:
        return Path(tempfile.mkdtemp(prefix="forgewatch-"))
    shutil.rmtree(sockets, ignore_errors=True)  # of servers that were killed
    sockets.mkdir(mode=0o700, parents=True)
    return sockets
