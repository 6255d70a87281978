"""What sharing an encoder costs or gives: `multihead.compare` trains several ways side by side, and every head alone.

Its result is a `Comparison`. The `file` of a comparison is read by `read`, and a comparison is drawn by its `plot`.
`python -m multihead compare config.py` does the same from the command line.
"""

from multihead.comparison._findings import Difference
from multihead.comparison._result import Comparison, read

__all__ = ["Comparison", "Difference", "read"]
