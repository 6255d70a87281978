"""Writing files that a crash must not leave half written."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replaces a file's text atomically: a reader sees the old text or the new one. Line ends are kept."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text, encoding="utf-8", newline="")
    os.replace(draft, path)
