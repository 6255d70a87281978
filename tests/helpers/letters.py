"""How large the letters of a figure are on a phone."""

from __future__ import annotations

from typing import Any

PHONE = 358
"""The width of a picture on a page, in a phone's pixels."""


def small_letters(figure: Any, least: float = 7.0) -> list[tuple[str, float]]:
    """The texts whose font has fewer pixels than `least` where the figure is as wide as a phone's page."""
    from matplotlib.text import Text

    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert shown, "a figure without texts"
    sizes = [(text.get_text(), PHONE * text.get_fontsize() / (72 * figure.get_figwidth())) for text in shown]
    return [(text, round(size, 1)) for text, size in sizes if size < least]
