"""A release's life: its records, the rules, the ledger, the artifacts, the control topic."""
