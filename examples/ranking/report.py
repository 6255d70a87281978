"""What a comparison shows: tables, one sentence, one picture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from examples import _style
from examples._command_line import shown
from examples.ranking import scores
from examples.ranking.model import Arrays
from examples.ranking.tables import Part

ALONE, TRUTH = "alone", "true values"
Table = tuple[str, list[str], list[list[str]]]


class Measure(NamedTuple):
    """A measure of one head.

    Attributes:
        head: The head.
        title: What is measured.
        form: The format of its values.
        values: By way, its value at each seed, `[seeds]`.
    """

    head: str
    title: str
    form: str
    values: dict[str, np.ndarray]

    def mean(self, way: str) -> float:
        """The mean over seeds."""
        return float(self.values[way].mean())

    def text(self, way: str) -> str:
        """The mean, with the deviation if there are several seeds."""
        values = self.values[way]
        spread = f" ± {values.std(ddof=1):{self.form}}" if len(values) > 1 and not np.isnan(values).any() else ""
        return shown(values.mean(), self.form) + spread


class Board:
    """What the models predict for the rows that they are compared on, and how good that is.

    Args:
        kinds: What each head predicts; `bought` is the product of `click` and `purchase` where no head predicts it.
        part: The rows.
        truth: The true probabilities and prices, if they are known.
    """

    def __init__(self, kinds: Mapping[str, str], part: Part, truth: Arrays | None) -> None:
        self.kinds, self.part, self.truth = kinds, part, truth
        self.predicted: dict[str, dict[int, Arrays]] = defaultdict(lambda: defaultdict(dict))
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, way: str, seed: int, predicted: Arrays, seconds: float) -> None:
        """Adds what a model predicts; models of the same way and seed, of one head each, count together."""
        every = self.predicted[way][seed]
        every.update(predicted)
        if "bought" in self.kinds and "bought" not in predicted and {"click", "purchase"} <= set(every):
            every["bought"] = every["click"] * every["purchase"]
        self.seconds[way] += seconds

    @property
    def comparable(self) -> list[str]:
        """The heads with a probability of which the rows have both labels."""
        both = {name: {0.0, 1.0} <= set(np.unique(labels)) for name, labels in self.part.targets.items()}
        return [head for head, kind in self.kinds.items() if kind == "probability" and both[head]]

    def aucs(self) -> list[Measure]:
        """The AUC of each probability that can be compared."""
        return [self._measure(head, head, ".4f", scores.auc) for head in self.comparable]

    def aucs_within(self) -> list[Measure]:
        """The same within a request; not of purchases after clicks, of which a request has one or none."""
        if self.part.requests is None:
            return []
        heads = [head for head in self.comparable if head != "purchase" or "bought" not in self.kinds]
        return [self._measure(head, f"{head} in request", ".4f", scores.auc_within, self.part.requests) for head in heads]

    def ratios(self) -> list[Measure]:
        """Of each probability, how many examples were predicted, over those observed."""
        heads = [head for head, kind in self.kinds.items() if kind == "probability"]
        return [self._measure(head, f"{head} ratio", ".2f", scores.calibration) for head in heads]

    def errors(self) -> list[Measure]:
        """The median error of each number, in its unit."""
        heads = [head for head, kind in self.kinds.items() if kind != "probability"]
        return [self._measure(head, f"{head} error", ".3g", scores.median_error) for head in heads]

    def compared(self) -> list[Measure]:
        """The AUC of each probability and the error of each number, as far as the rows have the labels for it."""
        return [each for each in [*self.aucs(), *self.errors()] if not np.isnan([*each.values.values()]).any()]

    def _measure(
        self, head: str, title: str, form: str, score: Callable[..., float], requests: np.ndarray | None = None
    ) -> Measure:
        labels = self.part.targets[head]
        known = ~np.isnan(labels)
        beside = [] if requests is None else [requests[known]]
        every = {way: [found[head] for found in by_seed.values()] for way, by_seed in self.predicted.items()}
        every |= {TRUTH: [self.truth[head]]} if self.truth else {}
        scored = {way: [score(labels[known], each[known], *beside) for each in found] for way, found in every.items()}
        return Measure(head, title, form, {way: np.array(values) for way, values in scored.items()})

    def tables(self) -> list[Table]:
        """A table of rankings, if there are probabilities, and one of values and seconds."""
        ways = [*self.predicted, *([TRUTH] if self.truth else [])]
        ranked = sorted([*self.aucs(), *self.aucs_within()], key=lambda each: list(self.kinds).index(each.head))
        valued = [*self.ratios(), *self.errors()]
        tables = []
        for title, measures in (("AUC", ranked), ("Predicted over observed, median error, seconds of training", valued)):
            header = ["trained", *(each.title.replace(" ", "\n") for each in measures)]
            tables.append((title, header, [[way, *(each.text(way) for each in measures)] for way in ways]))
        tables[1][1].append("seconds")
        for row in tables[1][2]:
            seconds = self.seconds.get(row[0], 0.0) / len(next(iter(self.predicted.values())))
            row.append(f"{seconds:.0f}" if row[0] in self.seconds else "")
        return tables[not ranked :]

    def best(self) -> str:
        """The joint model with the highest mean AUC or, without probabilities, the lowest mean error relative to alone."""
        ways = [way for way in self.predicted if way != ALONE]
        measures = self.compared()
        if ranked := [each for each in measures if self.kinds[each.head] == "probability"]:
            return max(ways, key=lambda way: sum(each.mean(way) for each in ranked))
        # Without a label to compare with, the first one.
        return min(ways, key=lambda way: sum(each.mean(way) / max(each.mean(ALONE), 1e-30) for each in measures))

    def sentence(self) -> str:
        """Which joint model is the best, and which of its heads differ from those alone beyond the noise."""
        if len(self.predicted) == 1:
            return "One head: there is nothing to share, and nothing to balance."
        best, parts = self.best(), []
        for each in self.compared():
            is_ranked = self.kinds[each.head] == "probability"
            verdict = f": {self.verdict(best, each.head)}" if is_ranked else ""
            name = "AUC" if is_ranked else "median error"
            values = f"{each.mean(best):{each.form}} ({each.mean(ALONE):{each.form}} alone{verdict})"
            parts.append(f"{name} of {each.head} {values}")
        if not parts:
            return "Nothing can be compared: no number has a label in these rows, and no probability has both."
        return f"Of the joint models, {best!r} ranks best: {', '.join(parts)}; and one encoder serves all heads."

    def verdict(self, way: str, head: str) -> str:
        """Whether a way ranks better or worse than the head alone, beyond two standard errors over rows and seeds."""
        labels = self.part.targets[head]
        known = ~np.isnan(labels)
        pairs = zip(self.predicted[way].values(), self.predicted[ALONE].values())
        found = [scores.difference(labels[known], *(each[head][known] for each in pair)) for pair in pairs]
        means, errors = (np.array(each) for each in zip(*found))
        square = np.mean(errors**2) + (means.var(ddof=1) / len(means) if len(means) > 1 else 0.0)
        if not abs(means.mean()) > 2 * math.sqrt(square):
            return "within the noise"
        return "better" if means.mean() > 0 else "worse"

    @_style.styled
    def draw(self) -> Any:
        """Draws what is `compared`: a panel for each measure, a row for each way."""
        measures = self.compared()
        ways, columns = list(self.predicted), min(2, len(measures))
        lines = -(-len(measures) // columns)
        height = 0.4 + lines * (0.9 + 0.3 * len(ways))
        figure, axes = _style.new_figure(lines, columns, height, width=5.2, sharey=True, squeeze=False)
        for axis, measure in zip(axes.flat, measures):
            _draw(axis, measure, ways)
        for axis in axes.flat[len(measures) :]:
            axis.set_visible(False)
        return figure


def _draw(axis: Any, measure: Measure, ways: list[str]) -> None:
    """Draws a measure as points, a row for each way, and the true values' as a line."""
    means = {way: measure.mean(way) for way in measure.values}
    low, high = min(means.values()), max(means.values())
    margin = max(0.15 * (high - low), 1e-4)
    if TRUTH in means:
        is_right = means[TRUTH] > (low + high) / 2
        axis.axvline(means[TRUTH], color=_style.GREEN, lw=1.5, ls="--")
        axis.text(means[TRUTH], -0.65, f" {TRUTH} ", color=_style.GREEN, ha="right" if is_right else "left")
    for row, way in enumerate(ways):
        color = _style.GREY if way == ALONE else _style.RED if way == "plain sum" else _style.BLUE
        spread = measure.values[way].std(ddof=1) if len(measure.values[way]) > 1 else None
        axis.errorbar(means[way], row, xerr=spread, fmt="o", color=color, ms=7, lw=1.5)
        is_right = means[way] > (low + high) / 2
        place = {"xytext": (-9 if is_right else 9, -0.5), "textcoords": "offset points", "va": "center"}
        text = f"{means[way]:{measure.form.replace('4', '3')}}"
        axis.annotate(text, (means[way], row), **place, color=color, ha="right" if is_right else "left")
    title = f"{measure.head}: AUC" if measure.title == measure.head else f"{measure.head}: median error"
    axis.set(title=title, xlim=(low - margin, high + margin), ylim=(len(ways) - 0.5, -1.0))
    axis.set_yticks(range(len(ways)), ways)
    axis.locator_params(axis="x", nbins=4)
    axis.grid(axis="x", alpha=0.3)
