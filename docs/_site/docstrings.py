"""How the reference reads the package's docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

# The labels with which paragraphs of our docstrings begin.
LABELS = r"^((?:Formula|What it fixes|Size of the update|State|Source)(?:, [^:]{1,30})?):"


class OfThePackage(griffe.Extension):
    """Finds `multihead.models`, whose files are in `models/`, and `multihead.compare`, which is imported when first used.

    Shows examples as code and labels in bold.
    """

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Called when a package is loaded."""
        if pkg.path == "multihead":
            pkg.set_member("models", loader.load("models", try_relative_path=False))
            pkg.set_member("compare", griffe.Alias("compare", "multihead.comparison._compare.compare"))

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is None:
            return
        if obj.is_class and "\nAttributes:" in obj.docstring.value and "\nArgs:" not in obj.docstring.value:
            obj.members.pop("__init__", None)  # users read it and do not create it
            obj.labels.discard("dataclass")
        text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
        text = re.sub(r"\. Size of the update:", ".\n\nSize of the update:", text)
        if last := re.search(r"the arguments up to `(\w+)`", text):
            described = rf"(^    {last[1]}: .*\n(?: {{8}}.*\n)*)\n?"
            text = re.sub(described, r"\1\nArgs: For special cases:\n", text, flags=re.MULTILINE)
        obj.docstring.value = re.sub(LABELS, r"**\1:**", text, flags=re.MULTILINE)
