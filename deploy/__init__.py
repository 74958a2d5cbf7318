"""A candidate becomes live: ledger, rollout, API, command line, local stack, demo."""

import ingest  # noqa: F401 - no library reports to its maker
