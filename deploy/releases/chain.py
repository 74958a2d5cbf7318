"""The ledger's hash chain: each row's hash covers the row and the hash before, so a changed past shows.

Triggers keep a slip of the hand out of the ledger; who may drop a trigger can still change a row, and
then every later hash is wrong. What the chain cannot show is that the newest rows are missing: the
releases topic then names a later rollout than the ledger (see deploy.releases.epoch).
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def link(before: str, row: Mapping[str, Any]) -> str:
    """The hash of a row, SHA-256 in hexadecimal digits.

    before is the hash of the row before, for the first row the ledger's id. Columns that are null are
    left out, so that a column which is added later changes no hash.
    """
    told = {name: value for name, value in row.items() if value is not None and name != "hash"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()
