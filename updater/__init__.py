"""Exemplars become a candidate: learners, calibration, evaluation, schedule."""
