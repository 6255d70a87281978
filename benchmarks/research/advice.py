"""What the advice of `diagnose` does to models that nobody picked: whom it helps, whom it hurts, and what it finds.

    python -m benchmarks.research advice --models 0-49

Each model of the population is diagnosed, and trained on three seeds with the plain sum, with each part of the suggestion by
itself, with all of it, and with `NormFloor()` always; the learning rate decays to zero, and heads are judged on held-out
data in the units of their targets. A model is a line of the results; models that have one are not trained again.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.research import population
from benchmarks.research.record import RESULTS, read
from multihead.diagnosis import Diagnosis

FILE = RESULTS / "advice.jsonl"
PLAIN, WHOLE, ALWAYS = "plain sum", "suggestion", "NormFloor always"
SEEDS, AGAIN, UPDATES, BATCH, REPEATED = 3, 5, 600, 64, 10
LIMIT = 2.0
"""A head is better or worse from this many standard errors of the difference on."""

Line = dict[str, Any]


def measure(number: int, *, seeds: int = SEEDS, updates: int = UPDATES) -> Line:
    """The line of a model: its findings, its suggestion, and each head's metric by variant and seed.

    With three seeds, a head of which nothing changes seems worse in one case of eleven (Student's distribution). Where one
    does with the whole suggestion or with `NormFloor()`, new seeds decide: the values `again`.
    """
    drawn = population.model(number)
    data = drawn.data()
    reports = {seed: _diagnosed(drawn, data, seed) for seed in range(seeds)}
    line: Line = {
        "model": number,
        "heads": {name: [task.kind, *task.metric] for name, task in drawn.tasks.items()},
        "encoder": f"{drawn.encoder} {drawn.width}",
        "missing": drawn.lacking,
        "planted": sorted(map(list, drawn.planted)),
        "findings": [[finding.kind, list(finding.heads)] for finding in reports[0].findings],
        "suggestion": repr(reports[0].suggestion),
        "values": _values(drawn, data, reports, updates),
    }
    worse = [variant for variant in (WHOLE, ALWAYS) if any(change < -LIMIT for _, _, change in compared([line], variant))]
    if worse:
        reports = {seed: _diagnosed(drawn, data, seed) for seed in range(seeds, seeds + AGAIN)}
        line["again"] = _values(drawn, data, reports, updates, {PLAIN, *worse})
    return line


def _diagnosed(drawn: population.Model, data: Any, seed: int) -> Diagnosis:
    keras.utils.set_random_seed(seed)
    trainer = drawn.build()
    trainer.compile(keras.optimizers.Adam(drawn.learning_rate))
    return trainer.diagnose(*data["train"], batch_size=BATCH)


def _values(
    drawn: population.Model, data: Any, reports: Mapping[int, Diagnosis], updates: int, only: Container[str] | None = None
) -> dict[str, dict[str, list[float | None]]]:
    """By variant and head, the metric on the held-out data for each seed, whose report makes the suggestion."""
    values: dict[str, dict[str, list[float | None]]] = {}
    for seed, report in reports.items():
        variants = {PLAIN: {}, **report.parts, WHOLE: report.suggestion, ALWAYS: {"balancer": "NormFloor"}}
        trained: dict[str, dict[str, float]] = {}
        for name, options in variants.items():
            if (name == WHOLE and not options) or (only is not None and name not in only):
                continue
            if repr(options) not in trained:  # a suggestion of one part is that part
                trained[repr(options)] = _trained(drawn, data, seed, updates, options)
            for head, value in trained[repr(options)].items():
                values.setdefault(name, {}).setdefault(head, []).append(value if math.isfinite(value) else None)
    return values


def _trained(drawn: population.Model, data: Any, seed: int, updates: int, options: Line) -> dict[str, float]:
    """Each head's metric on the held-out data after training."""
    keras.utils.set_random_seed(seed)
    trainer = drawn.build()
    # Several passes as one epoch, and a pass as one call, with the same values: on Keras 3 an epoch of a dozen steps takes
    # longer to begin than to train, and the loop around a small step as long as the step.
    passes = min(REPEATED, max(round(updates * BATCH / population.TRAINED), 1))
    batches = passes * population.TRAINED // BATCH
    epochs = max(round(updates / batches), 1)
    steps = epochs * batches
    train = tf.nest.map_structure(lambda rows: np.concatenate([rows] * passes), data["train"])
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(drawn.learning_rate, steps))
    trainer.compile(optimizer, steps_per_execution=population.TRAINED // BATCH, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of updates that were skipped
        try:
            trainer.fit(*train, batch_size=BATCH, epochs=epochs, verbose=0)
        except ValueError:  # nothing but such updates, or predictions that are no probabilities
            return dict.fromkeys(drawn.tasks, math.nan)
    result = trainer.evaluate(*data["test"], batch_size=256, verbose=0, return_dict=True)
    return {name: float(result[f"{name}_{task.metric[0]}"]) for name, task in drawn.tasks.items()}


def compared(lines: Sequence[Line], variant: str, *, again: bool = False) -> list[tuple[int, str, float]]:
    """By model and head, how far a variant is from the plain sum in standard errors of the difference; above 0 is better."""
    changes = []
    for line in lines:
        recorded = line.get("again", {}) if again else line["values"]
        for head, (_, _, direction) in line["heads"].items():
            plain, other = (recorded.get(name, {}).get(head) for name in (PLAIN, variant))
            if plain is None or other is None or len(other) < len(plain) or len(plain) < 2:
                continue
            one, two = (np.array([np.nan if value is None else value for value in each], float) for each in (plain, other))
            difference = (two - one) * (1 if direction == "max" else -1)
            error = difference.std(ddof=1) / math.sqrt(len(difference))
            # Differences below a thousandth are none, whatever their error.
            floor = 1e-3 * max(float(np.abs(one).mean()), 1e-12)
            changes.append((line["model"], head, float(difference.mean() / max(error, floor))))
    return [change for change in changes if math.isfinite(change[2])]


def tables(lines: Sequence[Line]) -> str:
    """Heads better and worse, and how often each finding is there with and without its cause, in Markdown."""
    variants = [name for name in dict.fromkeys(v for line in lines for v in line["values"]) if name != PLAIN]
    rows = ["| against the plain sum | heads | better | worse | worse again |", "| --- | --- | --- | --- | --- |"]
    for variant in variants:
        changes = compared(lines, variant)
        better, worse = ([(model, head) for model, head, change in changes if sign * change > LIMIT] for sign in (1, -1))
        repeated = [(model, head) for model, head, change in compared(lines, variant, again=True) if change < -LIMIT]
        again = ", ".join(f"model {model}, `{head}`" for model, head in repeated if (model, head) in worse)
        rows.append(
            f"| {variant} | {len(changes)} | {len(better)} | {len(worse)} | "
            f"{again or 'none' if variant in (WHOLE, ALWAYS) else 'not repeated'} |"
        )
    kinds = sorted({kind for line in lines for kind, _ in line["planted"]})
    rows += ["", "| finding | planted | found | not planted | found |", "| --- | --- | --- | --- | --- |"]
    for kind in kinds:
        with_cause, without = [0, 0], [0, 0]
        for line in lines:
            said = {head for each, heads in line["findings"] if each == kind for head in heads}
            for head in line["heads"]:
                counts = with_cause if [kind, head] in line["planted"] else without
                counts[0] += 1
                counts[1] += head in said
        cells = [f"{number} | {part / number:.2f}" if number else "0 | " for number, part in (with_cause, without)]
        rows.append(f"| `{kind}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def numbers(text: str) -> list[int]:
    """The numbers of models from `3`, or `0-9`."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def run(chosen: Sequence[int], file: Path = FILE, **options: int) -> None:
    """Trains the models that have no line yet, and writes a line for each at once."""
    known = {line["model"] for line in read(file)}
    file.parent.mkdir(parents=True, exist_ok=True)
    for number in chosen:
        if number not in known:
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(measure(number, **options)) + "\n")
