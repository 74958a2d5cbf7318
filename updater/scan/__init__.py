"""The head over time, trained: clips whose forged frames are known become a scanner of a release."""
