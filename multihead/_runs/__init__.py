"""Checkpoints of a run of `fit`, and the run that goes on from one."""
