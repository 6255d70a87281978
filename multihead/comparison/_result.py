"""The result of a comparison: values by variant, head and seed, paired differences, and what they say."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from multihead._display.drawing import table_as_text
from multihead._display.front import Point, draw_front
from multihead._ground.types import Config, Figure
from multihead._ground.validation import check_choice
from multihead.comparison._data import TEST, VALIDATION
from multihead.comparison._findings import (
    CONFIDENCE,
    Difference,
    answers_of,
    cost_of,
    difference_of,
    favoured,
    findings_of,
    joint_of,
    mean_and_deviation,
    relative_changes,
    tables_of,
)
from multihead.comparison._jobs import Line, lines_by_name, read_file
from multihead.comparison._study import ALONE, AT_EQUAL_COST, FINAL, label_of
from multihead.diagnosis._statistics import as_json

_COSTS = ("update", "serve", "size")


class Comparison:
    """The result of `multihead.compare`; `print` it.

    A variant that was also trained at equal cost has two names: `"EqualNorms"` and `"EqualNorms, equal cost"`. The
    single-task models are the variant `"alone"`.

    Args:
        lines: The lines of a comparison's file: its settings, then variants, costs and runs.

    Attributes:
        heads: The heads' names.
        metrics: The heads' metrics, by head name.
        directions: By head name, `"max"` if the metric is better when higher, or `"min"`.
        split: The part of the data on which variants are compared: `"test"`, or `"validation"` if there are no test data.
            Learning rates are always chosen on the validation data.
        variants: The names of the variants, `"alone"` first.
        scaled: The variants that scale targets otherwise than `build` does, and so than the single-task models.
        seeds: The seeds for which every variant has been trained.
        rates: The learning rates, by the name of the variant, and `"{head} alone"` for single-task models.
        head_rates: For variants with `"head_rates"`, the learning rates of the heads' own variables by head name.
        updates: The numbers of updates, by the name of the variant.
        costs: By the names of the measured variants, ratios of the variant's cost to the sum of the costs of the single-task
            models of all heads: `update`, the time of one update; `serve`, the time of one prediction for a batch; and
            `size`, the number of parameters, including those that are not trained. Below 1 is cheaper.
        lines: All lines, as in the file of the comparison.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = list(lines)
        settings = self.lines[0]["settings"]
        self.heads: tuple[str, ...] = tuple(settings["heads"])
        self.metrics = {head: settings["metrics"][head][0] for head in self.heads}
        self.directions = {head: settings["metrics"][head][1] for head in self.heads}
        self.split: str = settings["split"]
        self._signs = np.array([-1.0 if self.directions[head] == "min" else 1.0 for head in self.heads])
        chosen, variants = lines_by_name(self.lines, "chosen"), lines_by_name(self.lines, "variant")
        self._runs: dict[tuple[str, str, int], Line] = {}
        for line in (line for line in self.lines if line.get("run") == FINAL):
            choice = chosen.get(_label_of_line(line, line["head"]), line)
            if all(line.get(name) == choice.get(name) for name in ("rate", "head_rates")):
                self._runs[_label_of_line(line), line["head"], line["seed"]] = line
        self._fixed = {name for name, line in variants.items() if line["is_fixed"]}
        self.scaled = {name for name, line in variants.items() if line.get("is_scaled", False)}
        labels = [label_of(name, at_equal_cost=is_equal_cost) for is_equal_cost in (False, True) for name in variants]
        known = {label for label, _, _ in self._runs}
        self.variants: tuple[str, ...] = tuple(label for label in (ALONE, *labels) if label in known)
        wanted = [(variant, head if variant == ALONE else "") for variant in self.variants for head in self.heads]
        seeds = [{seed for *key, seed in self._runs if key == [*pair]} for pair in wanted]
        self.seeds: tuple[int, ...] = tuple(sorted(set.intersection(*seeds))) if seeds else ()
        in_order = sorted(self._runs.items(), key=lambda run: self.variants.index(run[0][0]))
        self.rates = {_label_of_line(line, head): line["rate"] for (_, head, _), line in in_order}
        self.head_rates = {label: line["head_rates"] for (label, _, _), line in in_order if "head_rates" in line}
        self.updates = {label: line["updates"] for (label, _, _), line in self._runs.items()}
        self.costs = {
            name: {key: line[f"{key}_ratio"] for key in _COSTS if f"{key}_ratio" in line}
            for name, line in lines_by_name(self.lines, "cost").items()
        }

    def values(self, variant: str, head: str, part: str | None = None) -> np.ndarray:
        """A head's metric, float64 `[seeds]`, in the order of `seeds`; NaN where training did not stay finite.

        Args:
            variant: The name of the variant.
            head: The head's name.
            part: `"validation"` or `"test"`. Default: `split`.

        Raises:
            ValueError: There is no such variant, head or part.
        """
        check_choice("variant", variant, self.variants)
        check_choice("head", head, self.heads)
        where = self.split if part is None else check_choice("part", part, sorted({VALIDATION, self.split}))
        lines = (self._runs[variant, head if variant == ALONE else "", seed] for seed in self.seeds)
        return np.array([line["metrics"].get(where, {}).get(self.metrics[head]) for line in lines], np.float64)

    def difference(self, variant: str, head: str, other: str = ALONE, confidence: float = CONFIDENCE) -> Difference:
        """The paired difference of a variant from another on a head, with a confidence interval over seeds.

        At the same seed, both variants have the same order of data and, unless one of them has its own `"build"`, the same
        initial weights. The differences `s_k (M_variant - M_other)`, with `M` the metric of head `k`, therefore vary less
        between seeds than the metrics do. `s_k` is 1 for a metric that is better when higher, otherwise -1: above 0, the
        variant is better.

        Args:
            variant: The name of the variant.
            head: The head's name.
            other: The name of the other variant.
            confidence: The confidence level of the interval, between 0 and 1.

        Raises:
            ValueError: There is no such variant or head, or `confidence` is out of range.
        """
        check_choice("other", other, self.variants)
        sign = self._signs[self.heads.index(check_choice("head", head, self.heads))]
        return difference_of(sign * (self.values(variant, head) - self.values(other, head)), confidence)

    def choose(self, variants: Sequence[str] | None = None) -> str:
        """Chooses a variant by the validation data, so that its test metrics are not those of the luckiest variant.

        The result is the cheapest variant that the validation data cannot distinguish from the best one, by these rules, in
        which every metric is that of the validation data. The candidates are the variants in which no head is worse than
        alone beyond its 95 % interval and whose delta-m is at least `-2 e`, with `e` the low median over the variants of the
        standard error of delta-m; if no variant qualifies, all are candidates. The best variant is the candidate with the
        largest delta-m. A candidate is as good if its delta-m is at most one standard error of the best variant's delta-m
        lower, and if the 95 % interval of the paired difference of the two includes 0. The cost is the measured time of
        training, or the number of updates if the time of some variant is not known.

        The choice is as good as the validation data: with fewer than about ten labels of a class, a head's metrics are too
        noisy to choose by.

        Args:
            variants: The names of the variants that may be chosen. Default: all that share an encoder.

        Raises:
            ValueError: There is no such variant, or none of them has finite metrics of all heads on the validation data.

        Source: the rule of one standard error of Breiman, Friedman, Olshen and Stone, Classification and Regression Trees,
        1984.
        """
        joint = joint_of(self)
        known = joint if variants is None else [check_choice("variants", variant, joint) for variant in variants]
        favourite = self._favoured(known)
        if favourite is None:
            raise ValueError(
                "`variants` must have a variant with finite metrics of all heads on the validation data, and so must the "
                f"single-task models. Received: variants={known!r}. Name others, or look at the values of {ALONE!r}."
            )
        return favourite[0]

    def _favoured(self, variants: Sequence[str]) -> tuple[str, bool] | None:
        values = {variant: self._of_heads(variant, VALIDATION) for variant in variants}
        times = {name: cost_of(name, self.updates, self.costs) for name in variants}
        costs = {
            name: self.updates[name] if time is None or None in times.values() else time for name, time in times.items()
        }
        return favoured(values, self._of_heads(ALONE, VALIDATION), self._signs, costs)

    def _of_heads(self, variant: str, part: str | None = None) -> np.ndarray:
        """The metrics of a variant, `[heads, seeds]`."""
        return np.array([self.values(variant, head, part) for head in self.heads])

    def delta_m(self, variant: str, confidence: float = CONFIDENCE) -> Difference:
        """The mean relative change against single-task models, with a confidence interval over seeds.

        `delta_m = 1/K sum_k s_k (M_k - B_k) / |B_k|` per seed, over the `K` heads, with `M_k` the variant's metric of
        head `k`, `B_k` the metric of the single-task model of head `k` at the same seed, and `s_k` 1 for a metric that is
        better when higher, otherwise -1. 0.05 is 5 % better.

        Args:
            variant: The name of the variant.
            confidence: The confidence level of the interval, between 0 and 1.

        Raises:
            ValueError: There is no such variant, or `confidence` is out of range.

        Source: Maninis, Radosavovic and Kokkinos, "Attentive Single-Tasking of Multiple Tasks", CVPR 2019.
        """
        return difference_of(relative_changes(self._of_heads(variant), self._of_heads(ALONE), self._signs), confidence)

    def _answers(self) -> list[str]:
        joint = joint_of(self)
        is_chosen = self.split == TEST and len(joint) > 1 and len(self.seeds) > 1
        return answers_of(self, self._favoured(joint) if is_chosen else None)

    @property
    def verdict(self) -> str:
        """The answer in one or two sentences: whether sharing is worth it, and which variant the validation data favour."""
        return " ".join(self._answers())

    @property
    def findings(self) -> list[str]:
        """The findings in sentences, the verdict first."""
        return [*self._answers(), *findings_of(self)]

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, columns and rows of the tables that `print` shows."""
        return tables_of(self)

    def table(self) -> str:
        """The tables as text."""
        return "\n\n".join(table_as_text(*table) for table in self.tables())

    def __str__(self) -> str:
        return "\n\n".join([self.verdict, self.table(), "\n".join(f"- {finding}" for finding in findings_of(self))])

    def plot(self) -> Figure:
        """Draws the front; see `multihead.plots.front`.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: matplotlib is not installed.
        """
        return draw_front(self.points(), self.metrics, self.directions, len(self.seeds), self.split)

    def points(self) -> list[Point]:
        """What `plot` draws: per variant, mean and standard deviation over seeds, relative changes, and its role."""
        points, alone = [], self._of_heads(ALONE)
        for variant in self.variants:
            values, base = self._of_heads(variant), variant.removesuffix(AT_EQUAL_COST)
            role = "alone" if variant == ALONE else "fixed" if base in self._fixed else "rule"
            rows = (slice(i, i + 1) for i in range(len(self.heads)))
            changes = [difference_of(relative_changes(values[i], alone[i], self._signs[i])).mean for i in rows]
            means, deviations = zip(*map(mean_and_deviation, values))
            is_base = base != variant and base in self.variants
            points.append(Point(variant, role, base if is_base else None, means, deviations, changes))
        return points

    def to_dict(self) -> Config:
        """All metrics, in lists, dicts, numbers and strings, as JSON takes them; non-finite numbers are None."""
        joint = joint_of(self)
        names = ("metrics", "directions", "split", "updates", "rates", "head_rates", "costs", "findings", "heads", "seeds")
        result = {name: getattr(self, name) for name in names}
        result["values"] = {name: {head: self.values(name, head) for head in self.heads} for name in self.variants}
        differences = {name: {head: self.difference(name, head) for head in self.heads} for name in joint}
        result |= {"differences": differences, "delta_m": {name: self.delta_m(name) for name in joint}}
        plain: Config = as_json(result)
        return plain


def _label_of_line(line: Line, head: str = "") -> str:
    return label_of(line["variant"], head, at_equal_cost=line["at_equal_cost"])


def read(path: str | os.PathLike[str]) -> Comparison:
    """Reads a comparison from its file.

    Args:
        path: The `file` of `multihead.compare`.

    Raises:
        ValueError: The file is not that of a comparison, or there is no seed for which it has runs of all variants and of
            the single-task models.
        FileNotFoundError: There is no such file.
    """
    lines = read_file(path)
    comparison = Comparison(lines) if lines else None
    if comparison is None or ALONE not in comparison.variants or not comparison.seeds:
        raise ValueError(
            "`path` must have runs of all variants for at least one seed. "
            f"Received: {os.fspath(path)!r}, which has none. Start the program again: it resumes where it stopped."
        )
    return comparison
