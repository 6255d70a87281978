"""What the methods' papers say, in NumPy and SciPy, float64, on the gradients themselves. Shares no code with the library."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.optimize import least_squares, minimize, nnls

from tests.helpers.zoo import norms, units


def project_onto_dual_cone(vector, rows):
    """The nearest x with rows @ x >= 0: `vector + rows^T v` for the v >= 0 that makes it shortest."""
    lift, _ = nnls(units(rows).T, -vector, maxiter=100 * len(rows))
    return vector + units(rows).T @ lift


def upgrad(rows, preference=None):
    preference = np.ones(len(rows)) if preference is None else preference
    return sum(p * n * project_onto_dual_cone(u, rows) for p, n, u in zip(preference, norms(rows), units(rows)))


def dualproj(rows, preference=None):
    preference = np.ones(len(rows)) if preference is None else preference
    return project_onto_dual_cone(preference @ rows, rows)


def mgda(rows):
    """The shortest point of each face of the convex hull, and of these the shortest that is a convex combination."""
    best = rows[np.argmin(norms(rows))]
    for size in range(1, len(rows) + 1):
        for face in itertools.combinations(range(len(rows)), size):
            first, edges = rows[face[0]], rows[list(face[1:])] - rows[face[0]]
            weights = np.linalg.lstsq(edges.T, -first, rcond=None)[0] if size > 1 else np.zeros(0)
            point = first + weights @ edges
            if (weights >= -1e-12).all() and weights.sum() <= 1 + 1e-12 and norms(point[None]) < norms(best[None]):
                best = point
    return best


def cagrad(rows, c):
    """Minimises the dual over the simplex from several starts; the update follows from the best."""
    mean, count = rows.mean(axis=0), len(rows)
    scale = np.linalg.norm(mean)
    rows, mean = rows / scale, mean / scale

    def dual(weights):
        return weights @ rows @ mean + c * np.linalg.norm(weights @ rows)

    constraint = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
    starts = [np.full(count, 1 / count), *(0.9 * np.eye(count) + 0.1 / count)]
    options = {"ftol": 1e-15, "maxiter": 1000}
    solutions = [
        minimize(dual, start, bounds=[(0, 1)] * count, constraints=constraint, method="SLSQP", options=options).x
        for start in starts
    ]
    pull = min(solutions, key=dual) @ rows
    return scale * (mean + c * pull / np.linalg.norm(pull))


def conicgrad_improvement(rows, c):
    """The smallest improvement by the best vector of the mean's norm within its cone: of the dual over the simplex."""
    mean, count = rows.mean(axis=0), len(rows)
    scale = np.linalg.norm(mean)

    def dual(weights):
        pull = weights @ rows / scale
        along, length = pull @ mean / scale, np.linalg.norm(pull)
        across = np.sqrt(max(length**2 - along**2, 0.0))
        return length if along >= c * length else c * along + np.sqrt(1 - c**2) * across

    constraint = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
    starts = [np.full(count, 1 / count), *(0.9 * np.eye(count) + 0.1 / count)]
    bounds, options = [(0, 1)] * count, {"ftol": 1e-15, "maxiter": 500}
    return scale**2 * min(
        minimize(dual, start, bounds=bounds, constraints=constraint, method="SLSQP", options=options).fun for start in starts
    )


def bargain(rows, alpha):
    """`(G w)_k = w_k^(-1/alpha)`, solved for the logarithms of w; of many starts the one that meets it."""
    gramian = rows @ rows.T

    def residual(logs):
        products = gramian @ np.exp(logs)
        return np.log(np.maximum(products, 1e-300)) + logs / alpha

    rng = np.random.default_rng(0)
    start = -np.log(norms(rows)) * 2 / (1 + 1 / alpha)
    while True:
        fit = least_squares(residual, start, xtol=1e-15, ftol=1e-15, gtol=1e-15)
        if fit.cost < 1e-20:
            return np.exp(fit.x)
        start = start + rng.normal(size=len(rows))


def imtlg(rows):
    weights = np.linalg.pinv(rows @ rows.T, hermitian=True) @ norms(rows)
    return weights / weights.sum() @ rows


def config(rows):
    direction = np.linalg.pinv(units(rows)) @ np.ones(len(rows))
    direction /= np.linalg.norm(direction)
    return (rows @ direction).sum() * direction


def aligned_mtl(rows, preference=None, scale="min", rank=None):
    preference = np.ones(len(rows)) if preference is None else preference
    left, singular, right = np.linalg.svd(rows, full_matrices=False)
    keeps = np.arange(len(singular)) < (len(rows) if rank is None else rank)
    kept = singular[keeps]
    common = {"min": kept.min(), "rmse": np.sqrt((kept**2).mean()), "median": np.sort(kept)[(len(kept) - 1) // 2]}[scale]
    return common * preference @ left[:, keeps] @ right[keeps]


def pcgrad(rows, orders):
    results = rows.copy()
    for i, order in enumerate(orders):
        for j in order:
            product = results[i] @ rows[j]
            if product < 0:
                results[i] = results[i] - product / (rows[j] @ rows[j]) * rows[j]
    return results


def gradvac(rows, orders, targets, beta):
    results, targets = rows.copy(), targets.copy()
    positions = range(len(rows) - 1)
    for position in positions:
        for i, order in enumerate(orders):
            j = order[position]
            length = np.linalg.norm(results[i])
            cosine = results[i] @ rows[j] / length / np.linalg.norm(rows[j])
            target = targets[i, j]
            if cosine < target:
                factor = length * (target * np.sqrt(1 - cosine**2) - cosine * np.sqrt(1 - target**2))
                results[i] = results[i] + factor / (np.linalg.norm(rows[j]) * np.sqrt(1 - target**2)) * rows[j]
            targets[i, j] = (1 - beta) * target + beta * cosine
    return results, targets


def project_onto_simplex(point):
    """By bisection for the number that, taken off, leaves positive parts that sum to 1."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - (low + high) / 2, 0)


class NormFloor:
    """The formula of the docstring, from the sums over all updates instead of step by step."""

    def __init__(self, floor, preference, beta=0.98):
        self.floor, self.preference, self.beta, self.past = floor, np.array(preference), beta, [[] for _ in preference]

    def running(self):
        found = np.zeros(len(self.past))
        for k, past in enumerate(self.past):
            if past:
                ages = self.beta ** np.arange(len(past))[::-1]
                found[k] = np.sqrt(ages @ past / ages.sum())
        return found

    def __call__(self, gramian):
        """The coefficients of an update, from the updates before it; then its squared norms belong to the past."""
        lengths, p, squares = self.running(), self.preference, np.diag(gramian)
        largest = max(lengths[k] / p[k] for k in range(len(p)) if p[k] > 0)
        targets = np.where(lengths > 0, np.maximum(lengths, self.floor * p * largest), 0)
        size = np.linalg.norm(lengths) / np.linalg.norm(targets) if lengths.any() else 1.0
        factors = [size * target / length if length > 0 else 1.0 for target, length in zip(targets, lengths)]
        for past, square in zip(self.past, squares):
            past.extend([square] if square > 0 else [])
        return np.where(squares > 0, factors, 0.0)


METHODS = {
    "Sum": lambda rows: rows.sum(axis=0),
    "EqualNorms": lambda rows: norms(rows).mean() * units(rows).sum(axis=0),
    "UPGrad": upgrad,
    "MGDA": mgda,
    "NashMTL": lambda rows: bargain(rows, 1.0) @ rows,
    "IMTLG": imtlg,
}
"""Some methods without options, from the heads' gradients to the update."""


def coefficients(method, gramian):
    """With what a method multiplies gradients that have this Gramian."""
    return _coefficients(METHODS[method], gramian)


def coefficients_of_pcgrad(gramian):
    """The same for PCGrad, one array for each of the orders that it may draw."""
    heads = range(len(gramian))
    orders = itertools.product(*(itertools.permutations([j for j in heads if j != i]) for i in heads))
    return [_coefficients(lambda rows, order=order: pcgrad(rows, order).sum(axis=0), gramian) for order in orders]


def _coefficients(combine, gramian):
    values, vectors = np.linalg.eigh(np.asarray(gramian, "float64"))
    rows = vectors * np.sqrt(np.maximum(values, 0))  # some rows with these inner products
    return np.linalg.lstsq(rows.T, combine(rows), rcond=None)[0]
