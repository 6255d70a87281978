"""A head's labels: their valid values, which elements have one, and how much each counts."""
