"""A picture of a trainer: encoder, representation and heads."""

from __future__ import annotations

from typing import Any

from multihead._display.drawing import GREY, colour, new_figure, title
from multihead._display.extras import needed
from multihead._display.summary import balancing_of, loss_of, parts_of, update_of, weight_of

WIDTH, HEIGHT, GAP = 2.6, 0.8, 0.35


def draw_model(trainer: Any) -> Any:
    """See `multihead.plots.model`."""
    heads = trainer.heads
    figure, axes = new_figure("`plots.model`", 1, 1, (10, 1.9 + (HEIGHT + GAP) * len(heads) * 0.75))
    axis = axes[0, 0]
    encoder, *of_heads = parts_of(trainer)
    height = len(heads) * (HEIGHT + GAP) - GAP
    middle = height / 2
    lowest = min(-0.1, middle - 0.85)
    _box(axis, (0, middle - 0.6), 1.2, "encoder", f"{encoder.kind}\n{encoder.in_words}", edge="#333333")
    axis.annotate("inputs", (0, middle), (-0.9, middle), ha="center", va="center", color=GREY, arrowprops=_arrow(GREY))
    node = WIDTH + 1.2
    axis.annotate("", (node, middle), (WIDTH, middle), arrowprops=_arrow("#333333"))
    axis.text((WIDTH + node) / 2, middle + 0.12, "representation", ha="center", va="bottom", fontsize=8, color=GREY)
    for k, (found, head) in enumerate(zip(of_heads, heads.values())):
        _draw_head(axis, found, head, (node, middle), height - HEIGHT - k * (HEIGHT + GAP), colour(k))
    axis.plot([node], [middle], "o", color="#333333", ms=9, zorder=3)
    point = (WIDTH / 2, middle - 0.6) if _balances_parameters(trainer) else (node, middle)
    dotted = {"arrowstyle": "-", "color": GREY, "ls": ":"}
    of_balancing = balancing_of(trainer).replace(", ", ",\n")
    how = f"heads' gradients:\n{of_balancing}"
    axis.annotate(how, point, (point[0], lowest), ha="center", va="top", fontsize=9, arrowprops=dotted)
    axis.set_xlim(-1.4, node + 1.3 + WIDTH + 2.4)
    axis.set_ylim(lowest - 0.65, height + 0.1)
    axis.set_axis_off()
    total = sum(each.parameters or 0 for each in (encoder, *of_heads))
    stages = dict(update_of(trainer))
    of_update = f"; one update is of {stages['examples']}, by {stages['optimizer']}" if stages else ""
    detail = f"{total:,} parameters{of_update}"
    number = f"{len(heads)} heads" if len(heads) > 1 else "1 head"
    title(axis, f"One encoder, {number}", detail)
    return figure


def _balances_parameters(trainer: Any) -> bool:
    options = trainer.options
    return options is not None and options.balancer is not None and options.balance_at == "parameters"


def _draw_head(axis: Any, found: Any, head: Any, node: tuple[float, float], bottom: float, edge: str) -> None:
    """The box of a head, the arrow to it from the representation, and its loss."""
    left, centre = node[0] + 1.3, bottom + HEIGHT / 2
    axis.annotate("", (left, centre), node, arrowprops=_arrow(edge))
    if head.reads is not None:
        axis.text(left - 0.1, centre + 0.08, _short(repr(head.reads)), ha="right", va="bottom", fontsize=8, color=GREY)
    _box(axis, (left, bottom), HEIGHT, found.name, f"{found.kind}, {found.in_words}", edge=edge)
    loss, right = f"{loss_of(head)}\nweight {weight_of(head)}" if head.loss is not None else "not trained", left + WIDTH
    axis.annotate(loss, (right, centre), (right + 0.5, centre), va="center", fontsize=9, arrowprops=_arrow(GREY, "<-"))


def _box(axis: Any, corner: tuple[float, float], height: float, name: str, text: str, *, edge: str) -> None:
    patches = needed("matplotlib.patches", "plots", "`plots.model`")
    left, bottom = corner
    shape = patches.FancyBboxPatch(
        (left, bottom), WIDTH, height, boxstyle="round,pad=0,rounding_size=0.08", fc="white", ec=edge, lw=2, zorder=2
    )
    axis.add_patch(shape)
    axis.text(
        left + 0.15, bottom + height - 0.12, _short(name, 26), va="top", fontsize=11, fontweight="bold", color=edge, zorder=3
    )
    axis.text(left + 0.15, bottom + 0.12, text, va="bottom", fontsize=9, color="black", zorder=3)


def _arrow(of_arrow: str, style: str = "-|>") -> dict[str, Any]:
    return {"arrowstyle": style, "color": of_arrow, "lw": 1.5, "shrinkA": 0, "shrinkB": 0}


def _short(text: str, length: int = 18) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
