"""A candidate becomes live: ledger, rollout, API, command line, local stack, demo."""
