"""Exemplars become a candidate: learners, calibration, evaluation, schedule."""

import ingest  # noqa: F401 - no library reports to its maker
