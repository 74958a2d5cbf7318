"""Unknowns are kept: rows, crops, index, clusters, labels, shelves."""

import ingest  # noqa: F401 - no library reports to its maker
