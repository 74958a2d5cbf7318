"""One candidate's life, in reading order: builder, plan, beginning, picture, calibrate, evaluate, report."""
