"""`compare`: the steps of a comparison, in order."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import keras
import numpy as np

from multihead._display.drawing import plain
from multihead._ground.types import Config, Dataset, Function, Given, Optimizer, Rate, Trainer
from multihead._ground.validation import check_positive_whole
from multihead.comparison._data import VALIDATION
from multihead.comparison._findings import relative_changes
from multihead.comparison._jobs import Each, Line, Lines, chosen_rates, key_of, last_of, opened, workers
from multihead.comparison._probe import check_variant, probe
from multihead.comparison._result import Comparison
from multihead.comparison._run import measure_cost, run
from multihead.comparison._study import (
    ALONE,
    FINAL,
    TUNE,
    Job,
    Study,
    Variant,
    checked,
    chosen,
    read_variants,
    settings_of,
)


def compare(
    build: Callable[[], Trainer],
    data: Dataset,
    variants: Mapping[str, Config],
    seeds: int | Sequence[int],
    budget: int | Mapping[str, int],
    *,
    metrics: Config | None = None,
    optimizer: Callable[[Rate], Optimizer] = keras.optimizers.Adam,
    rates: float | Sequence[float] = (1e-3, 3e-3, 1e-2),
    tuning_seeds: int | Sequence[int] = 1000,
    batch_size: int = 32,
    options: Config | None = None,
    equal_cost: bool | Sequence[str] = True,
    measure: Callable[[Trainer, Dataset], Mapping[str, float]] | None = None,
    file: str | os.PathLike[str] | None = None,
    processes: int = 1,
    verbose: int = 1,
) -> Comparison:
    """Compares ways to train several heads on one encoder, with each other and with one single-task model per head.

    All variants of a seed have the same initial weights, the same batches in the same order and the same number of updates;
    only variants with their own `"build"` start from other weights. Single-task models, the variant `"alone"`, are made from
    the same `build` by keeping only one head. The learning rate falls to zero along a cosine (Loshchilov and Hutter, "SGDR",
    2017), so that the result does not depend on the noise of the last updates. The initial rate is chosen for every variant,
    and for every single-task model, from the same grid, on a separate seed, by the validation data: by the metric of the
    head for a single-task model, and by delta-m against the best single-task models for several heads. A head with two
    classes is left out of this choice if the validation data have fewer than ten labels of one of its classes and other
    heads remain. Weightings that change at the end of an epoch, as `DWA` does, change after each pass over the training
    data.

    The equal-cost comparison trains a variant once more, for the time that the single-task models of all heads take
    together: `round(updates / r)` updates, where `r` is the time of one update of the variant, divided by the sum of the
    times of one update of each single-task model. These times are measured in turns, in one process, before the runs; `r` is
    the median of 7 rounds, or of up to 28 until it is known to about 2 percent.

    Args:
        build: A function without arguments that returns a `MultiHeadTrainer` with its heads. It is called for every run,
            after the seeds of Python, NumPy and TensorFlow have been set; `compile` is called by `compare`.
        data: A dict with `"train"` and `"validation"`, and `"test"` if variants are to be compared on other data than those
            on which learning rates are chosen. Each is `(x, y)` or `(x, y, sample_weight)`, arrays with targets by head
            name, or a `tf.data.Dataset` of batches. Or a function of the seed that returns such a dict, for splits by seed
            and for data sets that shuffle; it is called for every run, after the seeds have been set.
        variants: By the name of the variant, dicts of options of `compile` (`balancer`, `balance_at`, `weighting`,
            `head_schedule`, ...) and `"weights"`, a dict of the heads' weights. `{}` is the plain sum with the weights of
            `build`. `"build"` is a function in place of `build` whose trainer has the same heads, losses and metrics and,
            for example, an encoder as large as the encoders that it replaces; single-task models are always those of
            `build`. `"head_rates": "alone"` trains each head's own variables at the learning rate that was chosen for its
            single-task model, so that only the encoder's rate is chosen: with SGD, heads on one encoder may need rates that
            differ by factors. Every run creates new balancers, weightings and so on from the configuration of those given.
        seeds: The reported seeds: a number of them, counted from 0, or a list.
        budget: The number of updates of a run, or `{"epochs": number}`: this many passes over the training data.
        metrics: Each head's metric, by head name: the name of a metric of `evaluate`, or a pair of a name and `"min"` or
            `"max"`. None: each head's first metric whose direction is known, otherwise its loss.
        optimizer: An optimizer class, or another function of the learning rate that returns an optimizer, such as
            `functools.partial(keras.optimizers.AdamW, weight_decay=0.01)`.
        rates: The grid of initial learning rates; with a single rate, none is chosen.
        tuning_seeds: The seed on which rates are chosen, not one of `seeds` (1000 is this one seed, not a number of seeds);
            or a list of several, whose mean decides: a rate at the edge of stability, at which some runs fail, then is not
            chosen because one seed happened to succeed.
        batch_size: The number of examples in a batch of arrays.
        options: Options of `compile` for all variants and the single-task models, such as `clip` or
            `gradient_accumulation_steps`.
        equal_cost: Whether all variants are also trained at equal cost, or the names of the variants that are.
        measure: A function of a trained trainer and a part of the data that returns metrics by name, in place of
            `evaluate`. The part is as it was given; for a single-task model, trainer and part have one head.
        file: A file of JSON lines, to which every finished run is written. A call with the same file resumes where the last
            one stopped, also with further variants, seeds, rates or tuning seeds; runs in the file are not repeated. None:
            nothing is written.
        processes: How many runs are trained at once. Above 1, each process imports the program again: `build` and `data`
            must be functions at the top level of a file. Results do not depend on it.
        verbose: 1 prints a line for every run, 0 nothing.

    Returns:
        The comparison: tables, findings as text, intervals and the plot of the front; `print` it.

    Raises:
        ValueError: An argument is out of range, two runs of a seed differ in their initial weights or in the order of their
            batches, or `file` belongs to other settings.
        TypeError: An argument has the wrong type.
        RuntimeError: A worker process ended before it finished its run.

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
    study = checked(Study(build, data, optimizer, options or {}, batch_size, measure, seeds, tuning_seeds, rates, budget))
    read = read_variants(variants)
    by_name = {name: replace(each, build=None) if each.build is build else each for name, each in read.items()}
    twice = chosen(equal_cost, by_name)
    number = check_positive_whole("processes", processes)
    with opened(file) as lines, workers(study, number, [*by_name.values()]) as each:
        return _Steps(study, by_name, lines, each, verbose).all(twice, metrics)


class _Steps:
    """The steps of a comparison: `lines` are what is known already, and `each` computes the rest."""

    def __init__(self, study: Study, variants: Mapping[str, Variant], lines: Lines, each: Each, verbose: int) -> None:
        self._study, self._variants, self._lines, self._each, self._verbose = study, variants, lines, each, verbose
        self._metrics: dict[str, list[str]] = {}
        self._signs: dict[str, float] = {}
        self._judged: list[str] = []  # the heads by which a variant's rates are chosen
        self._baselines: dict[str, float] = {}  # the metric of each head alone on the tuning seeds
        self._total = self._known = self._done = 0  # updates of runs
        self._since = time.monotonic()

    def all(self, twice: Sequence[str], metrics: Given) -> Comparison:
        """All steps; `twice` are the variants that are trained at equal cost, too."""
        study = self._study
        first = Job(TUNE, next(iter(self._variants.values())), "", study.tuning_seeds[0], study.rates[0])
        first = replace(first, variant=replace(first.variant, build=None))
        ((_, probed),) = self._each(probe, [(first, metrics)])
        self._lines.begin(settings_of(study, probed))
        self._metrics = self._lines.lines[0]["settings"]["metrics"]
        self._signs = {head: 1.0 if direction == "max" else -1.0 for head, (_, direction) in self._metrics.items()}
        few = probed["few_labels"]
        if few != (last_of(self._lines.lines, "few_labels") or {}):
            self._lines.append({"few_labels": few})
        self._judged = [head for head in self._metrics if head not in few] or list(self._metrics)
        first = replace(first, updates=probed["updates"], budget=probed["updates"])
        alone = [replace(first, variant=Variant(ALONE), head=head) for head in self._metrics]
        rates = dict.fromkeys(self._metrics, first.rate * (1 if len(study.rates) == 1 else 2))  # until they are chosen
        trained = {
            name: replace(first, variant=variant, head_rates=rates if variant.as_alone else {})
            for name, variant in self._variants.items()
        }
        self._check_variants(trained)
        joint = [*trained.values(), *(self._at_equal_cost(trained[name], alone) for name in twice)]
        tuning = len(study.rates) * len(study.tuning_seeds) if len(study.rates) > 1 else 0
        self._total = sum(job.updates for job in (*alone, *joint)) * (tuning + len(study.seeds))
        self._since = time.monotonic()
        alone = self._tuned(alone)
        rates = {job.head: job.rate for job in alone}
        joint = self._tuned([replace(job, head_rates=job.head_rates and rates) for job in joint])
        final = [replace(job, kind=FINAL, seed=seed) for seed in study.seeds for job in (*alone, *joint)]
        self._run(final)
        wanted = {key_of(job.line) for job in final}
        # Without reported runs of other variants, seeds or rates than those that were asked for.
        return Comparison([line for line in self._lines.lines if line.get("run") != FINAL or key_of(line) in wanted])

    def _check_variants(self, jobs: Mapping[str, Job]) -> None:
        """Starts every variant that is new or has a `build`, so that errors come before the first run, and records it."""
        known = self._lines.named("variant")
        for name, variant in self._variants.items():
            if name in known and known[name]["how"] != variant.settings:
                raise ValueError(
                    f"`variants[{name!r}]` must be the same as in `file`. Received: {variant.settings!r}, and "
                    f"{known[name]['how']!r} in the file. Give the variant another name, or pass another file."
                )
        doubtful = [job for name, job in jobs.items() if name not in known or job.variant.build is not None]
        starts = {job.variant.name: found for job, found in self._each(check_variant, doubtful)}
        for variant in (job.variant for job in doubtful):
            start = starts[variant.name]
            if variant.name not in known:
                own = {} if variant.build is None else {"start": start}
                self._lines.append({"variant": variant.name, "is_fixed": variant.is_fixed, "how": variant.settings, **own})
            elif known[variant.name].get("start", start) != start:
                raise ValueError(
                    f"`variants[{variant.name!r}]['build']` must make the same trainer as for the runs in `file`. Received: "
                    "a function of the same name that makes other weights. Give the variant another name, or pass another "
                    "file."
                )

    def _at_equal_cost(self, job: Job, alone: Sequence[Job]) -> Job:
        """A variant with as many updates as take the time of all single-task models; measured unless it is known."""
        name = job.variant.name
        costs = self._lines.named("cost")
        if name not in costs:
            ((_, line),) = self._each(measure_cost, [(job, *alone)])
            costs[name] = self._lines.append(line)
            self._say(f"cost of {name!r}: {line['update_ratio']:.2f} of the single-task models' updates together")
        updates = max(round(job.updates / float(costs[name]["update_ratio"])), 1)
        return replace(job, updates=updates, at_equal_cost=True)

    def _tuned(self, jobs: Sequence[Job]) -> list[Job]:
        """Variants or single-task models with the learning rates that are best on the tuning seeds."""
        rates, seeds, found = self._study.rates, self._study.tuning_seeds, []
        if len(rates) > 1:
            self._run([replace(job, rate=rate, seed=seed) for job in jobs for rate in rates for seed in seeds])
        runs = self._lines.runs()
        for job in jobs:
            tried = [replace(job, rate=rate) for rate in rates]
            if len(rates) > 1:
                scores = [self._score([runs[key_of(replace(each, seed=seed).line)] for seed in seeds]) for each in tried]
                if not np.isfinite(scores).any():
                    raise ValueError(
                        f"`rates` must have a learning rate with which {job.label!r} stays finite. Received: rates="
                        f"{rates!r}. Add smaller ones."
                    )
                best = int(np.nanargmax(scores))
                if job.head:
                    self._baselines[job.head] = scores[best] * self._signs[job.head]
                tried = [tried[best]]
            own = {"head_rates": dict(job.head_rates)} if job.head_rates else {}
            line = {"chosen": job.label, "rate": tried[0].rate, "rates": list(rates), **own}
            if chosen_rates(self._lines.lines).get(job.label) != line:
                self._lines.append(line)
            found += tried
        return found

    def _score(self, lines: Sequence[Line]) -> float:
        """The mean metric of a single-task model, signed so that higher is better; the mean delta-m for several heads."""
        if head := lines[0]["head"]:
            return self._signs[head] * self._mean(lines, head)
        values = np.array([[self._mean(lines, head)] for head in self._judged])
        baselines = np.array([[self._baselines[head]] for head in self._judged])
        return float(relative_changes(values, baselines, np.array([self._signs[head] for head in self._judged]))[0])

    def _mean(self, lines: Sequence[Line], head: str) -> float:
        """The mean of a head's metric on the validation data over runs; NaN if one of them has none."""
        values = [line["metrics"].get(VALIDATION, {}).get(self._metrics[head][0]) for line in lines]
        return math.nan if None in values else float(np.mean(values))

    def _run(self, jobs: Iterable[Job]) -> None:
        """Computes the runs that are not known, and checks that runs of a seed had the same start and order."""
        known, new = self._lines.runs(), []
        for job in jobs:
            if key_of(job.line) in known:
                self._known += job.updates
            else:
                new.append(job)
        for job, line in self._each(run, new):
            of_seed = [each for each in self._lines.runs().values() if each["seed"] == job.seed]
            self._check_equal(of_seed, line)
            self._report(job, self._lines.append(line))

    def _check_equal(self, others: Sequence[Line], last: Line) -> None:
        """Checks that runs of a seed had the same batches in the same order and, with an equal `build`, the same start."""
        build = self._build_of(last["variant"])
        for line in others:
            shared = line["start"].keys() & last["start"].keys() if self._build_of(line["variant"]) == build else ()
            parts = [name for name in shared if line["start"][name] != last["start"][name]]
            if parts:
                argument = "build" if build is None else f"variants[{last['variant']!r}]['build']"
                raise ValueError(
                    f"`{argument}` must make the same initial weights whenever it is called with the same seeds. Received: "
                    f"other weights of {', '.join(sorted(parts))} in the variant {last['variant']!r} than in "
                    f"{line['variant']!r}, at seed {last['seed']}. Make all layers in `build`, and let nothing in it depend "
                    "on the time or on other files."
                )
            if any(one != other for one, other in zip(line["order"], last["order"])):
                raise ValueError(
                    "`data` must give the same batches in the same order for a seed. Received: other batches in the variant "
                    f"{last['variant']!r} than in {line['variant']!r}, at seed {last['seed']}. Pass a function of the seed "
                    "that makes the data set, so that a shuffle begins again, or let it have a seed and not reshuffle."
                )

    def _build_of(self, variant: str) -> Function | str | None:
        """What tells the trainers of a variant from those of others: variants with equal ones have equal starts."""
        if variant in self._variants:
            return self._variants[variant].build
        in_file = self._lines.named("variant").get(variant, {"how": {}})["how"]
        return variant if "build" in in_file else None

    def _report(self, job: Job, line: Line) -> None:
        """Prints a line for a run that has been computed, with an estimate of the time that is left."""
        self._done += job.updates
        left = (time.monotonic() - self._since) / self._done * max(self._total - self._known - self._done, 0)
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        time_left = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"
        values = line["metrics"].get(VALIDATION, {})
        names = [metric for metric, _ in self._metrics.values() if values.get(metric) is not None]
        found = ", ".join(f"{name} {plain(values[name])}" for name in names) or "not finite"
        which = f"rate {job.rate:g}" if job.kind == TUNE else f"seed {job.seed}"
        share = (self._known + self._done) / max(self._total, 1)
        self._say(f"{share:4.0%} {job.label}, {which}: {found} ({line['seconds']:.0f} s; about {time_left} left)")

    def _say(self, text: str) -> None:
        if self._verbose:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
