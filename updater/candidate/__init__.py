"""One candidate's life, in reading order: plan, builder, calibrate, evaluate, report."""
