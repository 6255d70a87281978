"""Lets the reference find `multihead.models`, whose files are in `models/` at the top of the repository."""

from __future__ import annotations

from typing import Any

import griffe


class ModelsInPackage(griffe.Extension):
    """Adds the package in `models/` to `multihead` as `multihead.models`."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Called when a package is loaded."""
        if pkg.path == "multihead":
            pkg.set_member("models", loader.load("models", try_relative_path=False))
