"""The plot of a diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np

from multihead._display.drawing import bars, heat_map, new_figure


def plot(found: Any) -> Any:
    """Draws who moves the encoder, how far each head has come, and which heads oppose each other; see `Diagnosis.plot`."""
    figure, axes = new_figure("`Diagnosis.plot`", 1, 3, (12, 1.8 + 0.5 * len(found.heads)))
    level = "parameters" if np.nansum(found.norms["parameters"]) > 0 else "representation"
    shares = found.shares[level]
    bars(axes[0, 0], "Who moves the encoder: share of its gradient", found.heads, shares, [f"{s:.1%}" for s in shares])
    with np.errstate(all="ignore"):
        ratios = found.losses / found.constant_losses
    texts = [f"{ratio:.2f}, {progress}" for ratio, progress in zip(ratios, found.progress)]
    bars(axes[0, 1], "How far heads have come: loss / loss of a constant", found.heads, ratios, texts)
    axes[0, 1].axvline(1, color="grey", lw=0.8, ls=":")
    heat_map(axes[0, 2], "Which heads agree: cosines of gradients", found.heads, found.cosines[level])
    return figure
