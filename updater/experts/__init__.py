"""Experts: networks with a real/fake head of their own, from a checkpoint to a term of the gate."""
