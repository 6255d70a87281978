"""Checkpoints of a run of `fit`, and resumed runs."""
