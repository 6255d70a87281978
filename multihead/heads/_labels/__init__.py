"""A head's labels: what they may be, which elements have one, and how much each counts."""
