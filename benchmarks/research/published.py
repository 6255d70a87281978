"""Numbers that others have published, beside which tables show ours."""

from __future__ import annotations

from collections.abc import Mapping

CHANGES: Mapping[str, tuple[float, float, float]] = {
    "plain sum": (-1.04, -16.86, -8.95),
    "PCGrad": (-1.04, -15.36, -8.20),
    "GradDrop": (-1.08, -22.04, -11.56),
    "MGDA loss+": (-1.45, -11.26, -6.35),
    "Uncertainty": (-1.11, -26.30, -13.70),
    "RandomLossWeighting": (-1.15, -19.48, -10.31),
    "IMTLG": (-2.51, -1.98, -2.24),
    "EqualNorms": (-1.61, -2.99, -2.30),
    "FAMO decayed": (-4.59, -0.75, -2.67),
    "NashMTL": (-1.70, -4.43, -3.06),
    "CAGrad 0.8": (-1.69, -2.59, -2.14),
}
"""Changes in percent of the left digit, the right image and their mean against each head alone: Gama and Grassi, table 3.

`EqualNorms` stands for their EDM, whose direction it has with two heads, `IMTLG` for their IMTL, and `MGDA loss+` for MGDA,
whose gradients are divided by norms and losses in the code of Sener and Koltun.
"""
ACCURACIES: Mapping[str, tuple[float, float]] = {
    "alone": (97.23, 95.90),
    "plain sum": (96.46, 94.99),
    "Uncertainty": (96.47, 95.29),
    "GradNorm": (96.27, 94.84),
    "MGDA loss+": (97.26, 95.90),
}
"""Accuracies in percent of the left and the right digit: Sener and Koltun, "Multi-Task Learning as Multi-Objective
Optimization", NeurIPS 2018, table 3; `MGDA loss+` is their MGDA-UB."""
AREAS: Mapping[str, Mapping[str, float]] = {
    "tox21": {"logistic regression": 0.705, "random forest": 0.736, "plain sum": 0.768},
    "sider": {"logistic regression": 0.622, "random forest": 0.669, "plain sum": 0.630},
    "clintox": {"logistic regression": 0.683, "random forest": 0.763, "plain sum": 0.832},
}
"""Areas under the ROC curve on the validation data of DeepChem's split by index, from its README of 2017; `plain sum` is its
multi-task net."""


def beside(name: str, variant: str) -> str:
    """What is published of a variant on a data set; empty if nothing is."""
    if name.startswith("cl_rr") and variant in CHANGES:
        return "{:+.2f}, {:+.2f}; {:+.2f} %".format(*CHANGES[variant])
    if name.startswith("cl_cr") and variant in ACCURACIES:
        return "{:.2f}, {:.2f} %".format(*ACCURACIES[variant])
    return f"{AREAS[name][variant]:.3f}" if variant in AREAS.get(name, {}) else ""
