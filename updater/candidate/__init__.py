"""One candidate's life, in reading order: builder, plan, calibrate, thresholds, evaluate, gates, report."""
