"""`compare`: the steps of a comparison, in order."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from multihead._ground.validation import check_positive_whole
from multihead.comparison._cost import measure_cost, updates_at_equal_cost
from multihead.comparison._data import VALIDATION
from multihead.comparison._file import Line, Lines, key_of, opened
from multihead.comparison._processes import Each, workers
from multihead.comparison._progress import Progress
from multihead.comparison._result import Comparison
from multihead.comparison._run import check_variant, probe, run
from multihead.comparison._student import relative_changes
from multihead.comparison._study import FINAL, TUNE, Job, Plan, Study, check_callables, label_of, read_plan, settings_of
from multihead.comparison._variants import ALONE, BUILD, OF_JOINT_TRAINING, Variant, chosen, read_options, read_variants


def compare(
    build: Callable[[], Any],
    data: Any,
    variants: Mapping[str, Mapping[str, Any]],
    seeds: int | Sequence[int],
    budget: int | Mapping[str, int],
    *,
    metrics: Mapping[str, Any] | None = None,
    optimizer: Callable[[Any], Any] = keras.optimizers.Adam,
    rates: float | Sequence[float] = (1e-3, 3e-3, 1e-2),
    tuning_seeds: int | Sequence[int] = 1000,
    batch_size: int = 32,
    options: Mapping[str, Any] | None = None,
    equal_cost: bool | Sequence[str] = True,
    measure: Callable[[Any, Any], Mapping[str, float]] | None = None,
    file: str | os.PathLike[str] | None = None,
    processes: int = 1,
    verbose: int = 1,
) -> Comparison:
    """Compares ways to train several heads on one encoder, with each other and with a model of its own for each head.

    All variants of a seed have the same initial weights, the same batches in the same order and the same number of updates;
    variants with a `build` of their own have other weights.
    Single-task models, the variant `"alone"`, are made from the same `build` by leaving one head only. The learning rate
    falls to zero by a cosine (Loshchilov and Hutter, "SGDR", 2017), so that the result is not the noise of the last updates.
    Where it starts is chosen for every variant, and for every single-task model, from the same grid on a seed of its own, by
    the validation data: the head's metric alone, delta-m against the best single-task models for several heads. Heads of two
    classes with fewer than ten labels of one of them there are left out of it, if others remain. Weightings that
    change at the end of an epoch, as `DWA` does, change after each pass over the training data.

    The equal-cost comparison trains a variant once more, for the time that the single-task models of all heads take
    together: `round(updates / r)` updates, where `r` is the time of one of its updates over the sum of theirs, measured in
    turns: the median of 7 rounds in one process, before the runs; of up to 28 until it is known to about 2 percent.

    Args:
        build: A function without arguments that returns a `MultiHeadTrainer` with its heads. It is called for every run,
            after the seeds of Python, NumPy and TensorFlow were set; `compile` is called by `compare`.
        data: A dict with `"train"` and `"validation"`, and `"test"` if variants are to be compared on other data than those
            on which learning rates are chosen. Each is `(x, y)` or `(x, y, sample_weight)`, arrays with targets by head
            name, or a `tf.data.Dataset` of batches. Or a function of the seed that returns such a dict, for splits by seed
            and for data sets that shuffle; it is called for every run, after the seeds were set.
        variants: By name, dicts of options of `compile` (`balancer`, `balance_at`, `weighting`, `head_schedule`, ...) and
            `"weights"`, a dict of the heads' weights. `{}` is the plain sum with the weights of `build`. `"build"` is a
            function in place of `build` whose trainer has the same heads, losses and metrics and, for example, an encoder as
            large as those that it replaces; single-task models are always those of `build`. `"head_rates": "alone"` gives
            the own variables of each head the learning rate that was chosen for it alone, so that a rate is chosen for the
            encoder only: with SGD, heads on one encoder may need rates that differ by factors. Every run has methods of its
            own, made from the configuration of those given.
        seeds: The reported seeds: a number of them, counted from 0, or a list.
        budget: The number of updates of a run, or `{"epochs": number}`: so many passes over the training data.
        metrics: Each head's metric, by head name: the name of a metric of `evaluate`, or a pair of a name and `"min"` or
            `"max"`. None: each head's first metric whose direction is known, otherwise its loss.
        optimizer: A class of optimizers, or another function of the learning rate that returns an optimizer, such as
            `functools.partial(keras.optimizers.AdamW, weight_decay=0.01)`.
        rates: The grid of initial learning rates; with a single rate, none is chosen.
        tuning_seeds: The seed on which rates are chosen, none of `seeds` (1000 is this one seed, not a number of seeds); or
            a list of several, whose mean decides: a rate at the edge of stability, at which some runs fail, then is not
            chosen for the luck of one.
        batch_size: The number of examples in a batch of arrays.
        options: Options of `compile` for all variants and the single-task models, such as `clip` or
            `gradient_accumulation_steps`.
        equal_cost: Whether all variants are trained at equal cost, too, or the names of those that are.
        measure: A function of a trained trainer and a part of the data that returns metrics by name, in place of
            `evaluate`. The part is as it was given; for a single-task model, trainer and part have one head.
        file: A file of JSON lines, to which every finished run is written. A call with the same file goes on where the last
            one stopped, also with further variants, seeds, rates or tuning seeds; runs in it are not repeated. None: nothing
            is written.
        processes: How many runs are trained at once. Above 1, each process imports the program again: `build` and `data`
            must be functions at the top level of a file. Results do not depend on it.
        verbose: 1 prints a line for every run, 0 nothing.

    Returns:
        The comparison: tables, findings in words, intervals and the picture of the front; `print` it.

    Raises:
        ValueError: An argument is out of range, the variants do not have equal starts or orders of data, or `file` belongs
            to other settings.
        TypeError: An argument has the wrong type.
        RuntimeError: A process has ended.

    Example:
        >>> from multihead import MultiHeadTrainer
        >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        >>> part = (x, {"a": x[:, :1], "b": x[:, 1:2]})
        >>> def build():
        ...     trainer = MultiHeadTrainer(keras.layers.Dense(3))
        ...     trainer.add_head("a", keras.layers.Dense(1), "mse")
        ...     trainer.add_head("b", keras.layers.Dense(1), "mse")
        ...     return trainer
        >>> found = compare(
        ...     build,
        ...     {"train": part, "validation": part},
        ...     {"plain sum": {}},
        ...     seeds=1,
        ...     budget=3,
        ...     rates=0.01,
        ...     equal_cost=False,
        ...     options={"run_eagerly": True},
        ...     verbose=0,
        ... )
        >>> found.variants, found.seeds
        (('alone', 'plain sum'), (0,))
        >>> found.values("plain sum", "a").shape
        (1,)
    """
    check_callables(build, optimizer, measure)
    by_name = {
        name: variant if variant.build is not build else replace(variant, build=None)
        for name, variant in read_variants(variants).items()
    }
    twice = chosen(equal_cost, by_name)
    plan = read_plan(seeds, tuning_seeds, rates, budget)
    common = read_options("options", options or {}, without=OF_JOINT_TRAINING)
    accumulate = check_positive_whole("options['gradient_accumulation_steps']", common.get("gradient_accumulation_steps", 1))
    size = check_positive_whole("batch_size", batch_size)
    study = Study(build, data, optimizer, common, size, measure, accumulate)
    number = check_positive_whole("processes", processes)
    with opened(file) as lines, workers(study, number, [*by_name.values()]) as each:
        return _Steps(study, plan, by_name, twice, lines, each, Progress(verbose)).all(metrics)


class _Steps:
    """The steps of a comparison.

    Args:
        study: What is the same for all runs.
        plan: Seeds, rates and budget.
        variants: The variants by name.
        twice: The names of the variants that are trained at equal cost, too.
        lines: What is known already, and where the rest is written.
        each: Computes runs.
        progress: Shows them.
    """

    def __init__(
        self,
        study: Study,
        plan: Plan,
        variants: Mapping[str, Variant],
        twice: Sequence[str],
        lines: Lines,
        each: Each,
        progress: Progress,
    ) -> None:
        self._study, self._plan, self._variants, self._twice = study, plan, variants, twice
        self._lines, self._each, self._progress = lines, each, progress
        self._metrics: dict[str, list[str]] = {}
        self._few_labels: dict[str, int] = {}
        self._budget = 1
        self._alone: dict[str, float] = {}  # the learning rate of each single-task model

    def all(self, metrics: Any) -> Comparison:
        """All steps."""
        first = next(iter(self._variants.values()))
        job = self._job(TUNE, replace(first, build=None), 1)
        ((_, probed),) = self._each(_probe, [(job, metrics, self._plan.budget)])
        updates = probed["updates"]
        self._budget = updates
        self._lines.begin(settings_of(self._study, self._plan, probed))
        self._metrics = self._lines.lines[0]["settings"]["metrics"]
        self._few_labels = self._lines.remember("few_labels", probed["few_labels"])
        self._alone = dict.fromkeys(self._metrics, self._plan.rates[0])  # until they are chosen
        self._check_variants()
        trained = [(variant, "", updates, False) for variant in self._variants.values()]
        alone = [(Variant(ALONE), head, updates, False) for head in self._metrics]
        trained += [(self._variants[name], "", self._at_equal_cost(name, updates), True) for name in self._twice]
        everything = [*alone, *trained]
        tuning = len(self._plan.rates) if len(self._plan.rates) > 1 else 0
        tuning *= len(self._plan.tuning_seeds)
        self._progress.expect(sum(each[2] for each in everything) * (tuning + len(self._plan.seeds)))
        rates = self._tuned(alone, updates)
        self._alone = dict(zip(self._metrics, rates))
        rates += self._tuned(trained, updates)
        final = [
            self._job(FINAL, *each, rate=rate, seed=seed)
            for seed in self._plan.seeds
            for each, rate in zip(everything, rates)
        ]
        self._run(final)
        return Comparison(self._shown({job.key for job in final}))

    def _tuned(self, each: Sequence[tuple[Variant, str, int, bool]], updates_alone: int) -> list[float]:
        """The learning rates of some variants, or of the single-task models."""
        if len(self._plan.rates) > 1:
            pairs = [*itertools.product(self._plan.rates, self._plan.tuning_seeds)]
            self._run(self._job(TUNE, *one, rate=rate, seed=seed) for one in each for rate, seed in pairs)
        rates = [self._rate(*one, updates_alone) for one in each]
        for (variant, head, _, at_equal_cost), rate in zip(each, rates):
            label = label_of(variant.name, head, at_equal_cost=at_equal_cost)
            self._lines.choose(label, rate, self._plan.rates, self._head_rates(variant))
        return rates

    def _head_rates(self, variant: Variant) -> dict[str, float]:
        return self._alone if variant.as_alone else {}

    def _job(
        self,
        kind: str,
        variant: Variant,
        head: Any,
        updates: int = 1,
        at_equal_cost: bool = False,
        *,
        rate: float | None = None,
        seed: int | None = None,
    ) -> Job:
        head = head if isinstance(head, str) else ""
        rate = self._plan.rates[0] if rate is None else rate
        seed = self._plan.tuning_seeds[0] if seed is None else seed
        own = variant.weights, variant.options, self._budget, variant.build, self._head_rates(variant)
        return Job(kind, variant.name, head, seed, rate, updates, at_equal_cost, *own)

    def _check_variants(self) -> None:
        """Starts every variant that is new or has a `build`, so that errors come before the first run, and records it.

        Raises:
            ValueError: A variant does not suit the trainer, or is another one in the file.
        """
        known = {line["variant"]: line for line in self._lines.lines if "is_fixed" in line}
        for name, variant in self._variants.items():
            if name in known and known[name]["how"] != variant.settings:
                raise ValueError(
                    f"`variants[{name!r}]` must be the same as in `file`. Received: {variant.settings!r}, and "
                    f"{known[name]['how']!r} in the file. Give the variant another name, or pass another file."
                )
        doubtful = [variant for name, variant in self._variants.items() if name not in known or variant.build is not None]
        starts = {
            job.variant: found
            for job, found in self._each(check_variant, [self._job(TUNE, variant, "") for variant in doubtful])
        }
        for variant in doubtful:
            start = {} if variant.build is None else {"start": starts[variant.name]}
            if variant.name not in known:
                self._lines.append({"variant": variant.name, "is_fixed": variant.is_fixed, "how": variant.settings, **start})
            elif known[variant.name].get("start", starts[variant.name]) != starts[variant.name]:
                raise ValueError(
                    f"`variants[{variant.name!r}]['build']` must make the same trainer as for the runs in `file`. Received: "
                    "a function of the same name that makes other weights. Give the variant another name, or pass another "
                    "file."
                )

    def _at_equal_cost(self, name: str, updates: int) -> int:
        """The number of updates of a variant at equal cost."""
        costs = self._lines.named("cost")
        if name not in costs:
            alone = [self._job(TUNE, Variant(ALONE), head, updates) for head in self._metrics]
            job = self._job(TUNE, self._variants[name], "", updates)
            if job.head_rates and len(self._plan.rates) > 1:  # not chosen yet; to scale steps takes as long by any factor
                job = replace(job, head_rates=dict.fromkeys(job.head_rates, 2 * job.rate))
            ((_, line),) = self._each(measure_cost, [(job, *alone)])
            costs[name] = self._lines.append(line)
            self._progress.say(f"cost of {name!r}: {line['update_ratio']:.2f} of the single-task models' updates together")
        return updates_at_equal_cost(updates, costs[name])

    def _run(self, jobs: Iterable[Job]) -> None:
        """Computes the runs that are not known, and checks that runs of a seed had the same start and order."""
        wanted, known = list(jobs), self._lines.runs()
        for job in (job for job in wanted if job.key in known):
            self._progress.skip(job)
        for job, line in self._each(run, [job for job in wanted if job.key not in known]):
            _check_equal([*(each for each in self._lines.runs().values() if each["seed"] == job.seed), line], self._build_of)
            self._progress.done(job, self._lines.append(line), self._metrics)

    def _build_of(self, variant: str) -> Any:
        """What tells the trainers of a variant from those of others: variants with equal ones have equal starts."""
        if variant in self._variants:
            return self._variants[variant].build
        in_file = self._lines.named("variant").get(variant, {"how": {}})["how"]
        return variant if BUILD in in_file else None

    def _rate(self, variant: Variant, head: str, updates: int, at_equal_cost: bool, updates_alone: int) -> float:
        """The best learning rate of the grid on the tuning seeds."""
        if len(self._plan.rates) == 1:
            return self._plan.rates[0]
        job = self._job(TUNE, variant, head, updates, at_equal_cost)
        scores = [self._score(self._tunings(job, rate), updates_alone) for rate in self._plan.rates]
        if not np.isfinite(scores).any():
            raise ValueError(
                f"`rates` must have a learning rate with which {job.label!r} stays finite. Received: rates="
                f"{self._plan.rates!r}. Add smaller ones."
            )
        return self._plan.rates[int(np.nanargmax(scores))]

    def _tunings(self, job: Job, rate: float) -> list[Line]:
        """The runs of a variant or a single-task model with a rate on the tuning seeds."""
        known = self._lines.runs()
        return [known[replace(job, rate=rate, seed=seed).key] for seed in self._plan.tuning_seeds]

    def _score(self, lines: Sequence[Line], updates_alone: int) -> float:
        """The mean metric of a single-task model, signed so that higher is better; the mean delta-m for several heads."""
        if head := lines[0]["head"]:
            return self._sign(head) * self._mean(lines, head)
        heads = [head for head in self._metrics if head not in self._few_labels] or list(self._metrics)
        values = np.array([[self._mean(lines, head)] for head in heads])
        baselines = np.array([[self._best_alone(head, updates_alone)] for head in heads])
        return float(relative_changes(values, baselines, np.array([*map(self._sign, heads)]))[0])

    def _best_alone(self, head: str, updates: int) -> float:
        job = self._job(TUNE, Variant(ALONE), head, updates)
        found = [self._mean(self._tunings(job, rate), head) for rate in self._plan.rates]
        return float(np.nanmax(found) if self._sign(head) > 0 else np.nanmin(found))

    def _mean(self, lines: Sequence[Line], head: str) -> float:
        """The mean of a head's metric on the validation data over runs; NaN if one of them has none."""
        values = [line["metrics"].get(VALIDATION, {}).get(self._metrics[head][0]) for line in lines]
        return math.nan if None in values else float(np.mean(values))

    def _sign(self, head: str) -> float:
        return 1.0 if self._metrics[head][1] == "max" else -1.0

    def _shown(self, keys: set[tuple[Any, ...]]) -> list[Line]:
        """The lines without reported runs of other variants, seeds or rates than those that were asked for."""
        return [line for line in self._lines.lines if line.get("run") != FINAL or key_of(line) in keys]


def _probe(study: Study, given: tuple[Job, Any, tuple[str, int]]) -> dict[str, Any]:
    job, metrics, budget = given
    return probe(study, job, metrics, *budget)


def _check_equal(lines: Sequence[Line], build_of: Callable[[str], Any]) -> None:
    """Checks that runs of a seed had the same batches in the same order and, with an equal `build`, the same start.

    Raises:
        ValueError: They did not.
    """
    *others, last = lines
    build = build_of(last["variant"])
    for line in others:
        is_comparable = build_of(line["variant"]) == build
        parts = [name for name in line["start"].keys() & last["start"].keys() if line["start"][name] != last["start"][name]]
        if parts and is_comparable:
            argument = "build" if build is None else f"variants[{last['variant']!r}]['build']"
            raise ValueError(
                f"`{argument}` must make the same initial weights whenever it is called with the same seeds. Received: "
                f"other weights of {', '.join(sorted(parts))} in the variant {last['variant']!r} than in "
                f"{line['variant']!r}, at seed {last['seed']}. Make all layers in `build`, and let nothing in it depend on "
                "the time or on other files."
            )
        if any(one != other for one, other in zip(line["order"], last["order"])):
            raise ValueError(
                "`data` must give the same batches in the same order for a seed. Received: other batches in the variant "
                f"{last['variant']!r} than in {line['variant']!r}, at seed {last['seed']}. Pass a function of the seed that "
                "makes the data set, so that a shuffle begins again, or let it have a seed and not reshuffle."
            )
