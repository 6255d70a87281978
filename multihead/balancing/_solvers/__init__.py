"""How the weights of unit rows are computed.

- `least_squares`: an exact active-set method for rows of any kind, which may depend on each other or oppose each other, and
  what is computed with it.
- `rotations`: singular vectors of rows whose norms differ by orders of magnitude, of which an eigensolver would lose the
  small ones.
"""
