"""Pictures of a run and of a model. They need matplotlib: `pip install 'multihead[plots]'`.

`python -m multihead plot run.jsonl` draws all plots of the file of a `callbacks.UpdateLogger`. Each function draws one, and
returns a `matplotlib.figure.Figure`: `figure.savefig("losses.png")`. A run is the file of a ledger, what `read` returns, or
what `fit` has returned, Keras's `History`, which is drawn by epoch. Of a list of runs, one is drawn below the other. `front`
draws a comparison of several runs (`multihead.compare`).
"""

from multihead.plots._pictures import all_of, cosines, front, layers, losses, model, norms, shares, weights
from multihead.plots._run import Run, read

__all__ = ["Run", "all_of", "cosines", "front", "layers", "losses", "model", "norms", "read", "shares", "weights"]
