"""Measures the heads' gradients without training, and suggests what to change."""

from multihead.diagnosis._report import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding"]
