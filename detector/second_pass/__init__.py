"""The second pass after the first verdict: maps, scans, stretches."""
