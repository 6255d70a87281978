"""`compare`: the steps of a comparison, in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import keras
import numpy as np

from multihead._display.drawing import plain
from multihead._ground.types import Config, Dataset, Optimizer, Trainer
from multihead._ground.validation import check_choice, check_positive_whole
from multihead.comparison._data import VALIDATION
from multihead.comparison._findings import relative_changes
from multihead.comparison._jobs import Compute, Line, Lines, key_of, lines_by_name, open_lines, workers
from multihead.comparison._probe import check_variant, probe
from multihead.comparison._result import Comparison
from multihead.comparison._run import measure_cost, run
from multihead.comparison._study import ALONE, FINAL, TUNE, Job, Study, Variant, read_study, read_variants
from multihead.rates import Rate


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
    head for a single-task model, and by delta-m against the best single-task models for several heads. With very few
    validation labels of a class, metrics are too noisy for such a choice: pass a single rate. Weightings that change at the
    end of an epoch, as `DWA` does, change after as many updates as make a pass over the training data.

    The equal-cost comparison trains a variant once more, for the time that the single-task models of all heads take
    together: `round(updates / r)` updates, where `r` is the time of one update of the variant, divided by the sum of the
    times of one update of the single-task models. These times are measured in turns, in one process, when the rates of the
    single-task models are known; `r` is the median of 11 rounds.

    Args:
        build: A function without arguments that returns a `MultiHeadTrainer` with its heads. It is called for every run,
            after the seeds of Python, NumPy and TensorFlow have been set; `compile` is called by `compare`.
        data: A dict with `"train"` and `"validation"`, and `"test"` if variants are to be compared on other data than those
            on which learning rates are chosen. Each is `(x, y)` or `(x, y, sample_weight)`, arrays with targets by head
            name, or a `tf.data.Dataset` of batches. Or a function of the seed that returns such a dict, for splits by seed
            and for data sets that shuffle; it is called for every run, after the seeds have been set.
        variants: By the name of the variant, dicts of options of `compile` (`balancer`, `balance_at`, `weighting`,
            `head_schedule`, `target_scaling`, ...; so also a `diagnosis.suggestion`, and any of `diagnosis.parts`) and
            `"weights"`, a dict of the heads' weights. `{}` is the plain sum with the weights of `build`. A head whose
            targets are scaled otherwise than in `build` must be judged by a metric, which is in the targets' units, not by
            its loss. `"build"` is a function in place of `build` whose trainer has the same heads, losses and metrics and,
            for example, an encoder as large as the encoders that it replaces; single-task models are always of `build`.
            `"head_rates": "alone"` trains a head's own variables at the learning rate that was chosen for its
            single-task model, so that only the encoder's rate is chosen: with SGD, heads on one encoder may need rates that
            differ by factors. Every run creates new balancers, weightings and so on from the configuration of those given.
        seeds: The reported seeds: a number of them, counted from 0, or a list.
        budget: The number of updates of a run, or `{"epochs": number}`: this many passes over the training data.
        metrics: The heads' metrics, by head name: the name of a metric of `evaluate`, or a pair of a name and `"min"` or
            `"max"`. None: a head's first metric whose direction is known, otherwise its loss.
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
            `evaluate`. The part is as in `data`; for a single-task model, trainer and part have one head.
        file: A file of JSON lines, to which every finished run is written. A call with the same file resumes where the last
            one stopped, also with further variants, seeds, rates or tuning seeds; runs in the file are not repeated. None:
            nothing is written.
        processes: The number of runs that are trained at once. Above 1, each process imports the program again: `build` and
            `data` must be functions at the top level of a file. Results do not depend on it.
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
        >>> comparison = compare(
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
        >>> comparison.variants, comparison.seeds
        (('alone', 'plain sum'), (0,))
        >>> comparison.values("plain sum", "a").shape
        (1,)
    """
    study = read_study(
        build=build,
        data=data,
        optimizer=optimizer,
        options=options or {},
        batch_size=batch_size,
        measure=measure,
        seeds=seeds,
        tuning_seeds=tuning_seeds,
        rates=rates,
        budget=budget,
    )
    by_name = read_variants(variants, build)
    equal_cost_names = (by_name if equal_cost else ()) if isinstance(equal_cost, bool) else equal_cost
    equal_cost_names = [check_choice("equal_cost", name, list(by_name)) for name in equal_cost_names]
    number = check_positive_whole("processes", processes)
    with open_lines(file) as lines, workers(study, number, [*by_name.values()]) as compute:
        return _Steps(study, by_name, lines, compute, verbose).all(equal_cost_names, metrics)


class _Steps:
    """The steps of a comparison: `lines` are what is known already, and `compute` computes the rest."""

    def __init__(self, study: Study, variants: Mapping[str, Variant], lines: Lines, compute: Compute, verbose: int) -> None:
        self._study, self._variants, self._lines, self._compute, self._verbose = study, variants, lines, compute, verbose
        self._metrics: dict[str, list[str]] = {}
        self._baselines: dict[str, float] = {}  # the scores of the heads alone on the tuning seeds

    def all(self, equal_cost_names: Sequence[str], metrics: object) -> Comparison:
        study = self._study
        first = Job(TUNE, Variant(ALONE), "", 0, study.rates[0])
        ((_, settings),) = self._compute(probe, [(first, metrics)])
        self._lines.begin(settings)
        self._metrics, updates = settings["metrics"], settings["updates"]
        first = replace(first, seed=study.tuning_seeds[0], updates=updates)
        alone, rates = [replace(first, head=head) for head in self._metrics], dict.fromkeys(self._metrics, first.rate)
        joint = [
            replace(first, variant=variant, head_rates=rates if variant.as_alone else {})
            for variant in self._variants.values()
        ]
        self._check_variants(joint)
        alone = self._tuned(alone)
        rates = {job.head: job.rate for job in alone}
        joint = [replace(job, head_rates=job.head_rates and rates) for job in joint]
        joint = self._tuned(
            joint + [self._at_equal_cost(job, alone) for job in joint if job.variant.name in equal_cost_names]
        )
        final = [replace(job, kind=FINAL, seed=seed) for seed in study.seeds for job in (*alone, *joint)]
        self._run(final)
        wanted = {key_of(job.line) for job in final}
        # Without reported runs of other variants, seeds or rates than those that were asked for.
        return Comparison([line for line in self._lines.lines if line.get("run") != FINAL or key_of(line) in wanted])

    def _check_variants(self, jobs: Sequence[Job]) -> None:
        """Starts every variant that is new or has a `build`, so that errors come before the first run, and records it."""
        known = lines_by_name(self._lines.lines, "variant")
        doubtful = [job for job in jobs if job.variant.name not in known or job.variant.build is not None]
        arguments = [(job, self._metrics) for job in doubtful]
        starts = {job.variant.name: start for (job, _), start in self._compute(check_variant, arguments)}
        for name, variant in self._variants.items():
            how = {**variant.settings, **({} if variant.build is None else {"start": starts[name][0]})}
            if name not in known:
                line = {"variant": name, "is_fixed": variant.is_fixed, "is_scaled": starts[name][1], "how": how}
                self._lines.append(line)
            elif known[name]["how"] != how:
                raise ValueError(
                    f"`variants[{name!r}]` must be the same as in `file`, and its `build` make the same weights. Received: "
                    f"{how!r}, and {known[name]['how']!r} in the file. Give the variant another name, or pass another file."
                )

    def _at_equal_cost(self, job: Job, alone: Sequence[Job]) -> Job:
        """A variant with as many updates as take the time of all single-task models; measured unless it is known."""
        name = job.variant.name
        line = lines_by_name(self._lines.lines, "cost").get(name)
        if line is None:
            ((_, cost),) = self._compute(measure_cost, [(job, *alone)])
            line = self._lines.append(cost)
            self._say(f"cost of {name!r}: {line['update_ratio']:.2f} of the single-task models' updates together")
        return replace(job, updates=max(round(job.updates / line["update_ratio"]), 1), at_equal_cost=True)

    def _tuned(self, jobs: Sequence[Job]) -> list[Job]:
        """Variants or single-task models with the learning rates that are best on the tuning seeds."""
        rates, seeds, tuned = self._study.rates, self._study.tuning_seeds, []
        if len(rates) > 1:
            self._run([replace(job, rate=rate, seed=seed) for job in jobs for rate in rates for seed in seeds])
        runs = self._lines.runs()
        for job in jobs:
            best = 0
            if len(rates) > 1:
                tried = [[replace(job, rate=rate, seed=seed).line for seed in seeds] for rate in rates]
                scores = [self._score([runs[key_of(line)] for line in rate_lines]) for rate_lines in tried]
                if not np.isfinite(scores).any():
                    raise ValueError(
                        f"`rates` must have a learning rate with which {job.label!r} stays finite. Received: rates="
                        f"{rates!r}. Add smaller ones."
                    )
                best = int(np.nanargmax(scores))
                if job.head:
                    self._baselines[job.head] = scores[best]
            tuned.append(replace(job, rate=rates[best]))
            own = {"head_rates": dict(job.head_rates)} if job.head_rates else {}
            line = {"chosen": job.label, "rate": rates[best], "rates": list(rates), **own}
            if lines_by_name(self._lines.lines, "chosen").get(job.label) != line:
                self._lines.append(line)
        return tuned

    def _score(self, lines: Sequence[Line]) -> float:
        """The mean metric of a single-task model, signed so that higher is better; the mean delta-m for several heads."""
        heads = [lines[0]["head"]] if lines[0]["head"] else list(self._metrics)
        signs = np.array([1.0 if self._metrics[head][1] == "max" else -1.0 for head in heads])
        values = [[line["metrics"].get(VALIDATION, {}).get(self._metrics[head][0]) for line in lines] for head in heads]
        means = signs * np.array(values, np.float64).mean(axis=1)  # None is NaN
        if lines[0]["head"]:
            return float(means[0])
        baselines = np.array([self._baselines[head] for head in heads])
        return float(relative_changes(means[:, None], baselines[:, None], np.ones(len(heads)))[0])

    def _run(self, jobs: Iterable[Job]) -> None:
        """Computes the runs that are not known, and checks that runs of a seed had the same start and order."""
        known = self._lines.runs()
        new = [job for job in jobs if key_of(job.line) not in known]
        for count, (job, line) in enumerate(self._compute(run, new), start=1):
            self._check_equal(line)
            values = self._lines.append(line)["metrics"].get(VALIDATION, {})
            names = [metric for metric, _ in self._metrics.values() if values.get(metric) is not None]
            metrics = ", ".join(f"{name} {plain(values[name])}" for name in names) or "not finite"
            which = f"rate {job.rate:g}" if job.kind == TUNE else f"seed {job.seed}"
            self._say(f"{count} of {len(new)}: {job.label}, {which}: {metrics} ({line['seconds']:.0f} s)")

    def _check_equal(self, last: Line) -> None:
        """Checks that runs of a seed had the same batches in the same order and, with an equal `build`, the same start."""
        variants = lines_by_name(self._lines.lines, "variant")
        own = {name: name if "build" in line["how"] else None for name, line in variants.items()}
        for line in self._lines.runs().values():
            if line["seed"] != last["seed"]:
                continue
            where = f"in the variant {last['variant']!r} than in {line['variant']!r}, at seed {last['seed']}"
            if own.get(line["variant"]) == own.get(last["variant"]) and line["start"] != last["start"]:
                raise ValueError(
                    "`build` must make the same initial weights whenever it is called with the same seeds. Received: other "
                    f"weights {where}. Make all layers in `build`, and let nothing in it depend on the time or on other "
                    "files."
                )
            if any(one != other for one, other in zip(line["order"], last["order"])):
                raise ValueError(
                    "`data` must give the same batches in the same order for a seed. Received: other batches "
                    f"{where}. Pass a function of the seed that makes the data set, so that a shuffle begins again, or let "
                    "it have a seed and not reshuffle."
                )

    def _say(self, text: str) -> None:
        if self._verbose:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
