"""How weights of unit rows are found.

- `least_squares`: exact, for rows of any kind, which may depend on each other or oppose each other. Its time grows with the
  fourth power of the number of heads.
- `pivoting`: quick, by a few systems of linear equations, for rows that are clearly independent, which nearly all are, and
  for more than 128 heads.
- `rotations`: singular vectors of rows whose norms differ by orders of magnitude, of which an eigensolver would lose the
  small ones.
"""
