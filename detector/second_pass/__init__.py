"""What is looked at more closely after the first verdict: maps, scans, stretches."""
