"""`python -m ingest.process.probe URL`: asks a process how it does and says its answer; exit code 0 for 200.

For kubelets, which of an HTTP probe that fails show the status code alone: of a command they show what it
says. Only the standard library, and little of it, since this runs every few seconds.
"""

import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

_TIMEOUT_S = 7.0
_MOST_BYTES = 1000


def main(url: str) -> int:
    """Ask, and print one line: the answer, or why there is none."""
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port or 80, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", address.path)
        answer = connection.getresponse()
        text, code = answer.read(_MOST_BYTES).decode(errors="replace"), int(answer.status != 200)
    except (OSError, HTTPException) as error:
        text, code = f"{url} does not answer: {error}", 1
    print(" ".join(text.split()))  # noqa: T201 - what it says is its purpose
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
