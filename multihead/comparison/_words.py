"""The tables of a comparison, and what it says in sentences. `found` is always the `Comparison`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from multihead._display.tables import plain
from multihead._ground.validation import quoted
from multihead.comparison._data import TEST
from multihead.comparison._jobs import chosen_rates
from multihead.comparison._student import Difference, cost_of, mean_and_deviation
from multihead.comparison._study import ALONE, AT_EQUAL_COST


def joint_of(found: Any) -> list[str]:
    """The variants that share an encoder."""
    return [variant for variant in found.variants if variant != ALONE]


def tables_of(found: Any) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows: the metrics of all variants, and the differences from the single-task models."""
    count = "1 seed" if len(found.seeds) == 1 else f"{len(found.seeds)} seeds"
    arrows = {"max": "↑", "min": "↓"}
    columns = [f"{found.metrics[head]} {arrows[found.directions[head]]}" for head in found.heads]
    values = [
        [*_of_training(found, name), *(_spread(found.values(name, h)) for h in found.heads)] for name in found.variants
    ]
    differences = [
        [
            name,
            *(_interval(found.difference(name, head)) for head in found.heads),
            _interval(found.delta_m(name), percent=True),
        ]
        for name in joint_of(found)
    ]
    return [
        (
            f"On the {found.split} data: mean ± standard deviation over {count}",
            ["variant", "updates", "cost", "rate", *columns],
            values,
        ),
        (
            f"Against each head alone, 95 % interval over {count}: above 0 is better",
            ["variant", *found.metrics.values(), "delta-m"],
            differences,
        ),
    ]


def _of_training(found: Any, variant: str) -> list[str]:
    """The variant, its number of updates, the cost relative to the single-task models, and the learning rate."""
    labels = [f"{head} {ALONE}" for head in found.heads] if variant == ALONE else [variant]
    rates = ", ".join(f"{rate:g}" for rate in dict.fromkeys(found.rates[label] for label in labels))
    cost = cost_of(variant, found.updates, found.costs)
    rates = f"{rates}; heads as alone" if variant in found.head_rates else rates
    return [variant, f"{found.updates[variant]:,}", "" if cost is None else f"{cost:.2f}", rates]


def _spread(values: np.ndarray) -> str:
    mean, deviation = mean_and_deviation(values)
    failed = int((~np.isfinite(values)).sum())
    if failed == len(values):
        return "failed"
    text = f"{mean:.4g}" + (f" ± {deviation:.2g}" if math.isfinite(deviation) else "")
    return f"{text} ({failed} failed)" if failed else text


def _interval(difference: Difference, *, percent: bool = False) -> str:
    if not np.isfinite(difference.mean):
        return "unknown"
    mean, low, high = (f"{each:+.1%}" if percent else f"{each:+.3g}" for each in difference[:3])
    return f"{mean} ({low} to {high})" if np.isfinite(difference.low) else mean


def verdict_of(found: Any, favoured: str | None, *, is_harmful: bool) -> list[str]:
    """One or two sentences: whether one encoder is as good as one for each head, and what the validation data favour.

    Args:
        found: The comparison.
        favoured: The variant that the validation data favour, if they are not those on which variants are compared.
        is_harmful: Whether a head is worse than alone with it there.
    """
    if favoured is None or len(joint_of(found)) < 2 or len(found.seeds) < 2:
        return [_answer(found)]
    return [_answer(found), _of_favoured(found, favoured, is_harmful)]


def findings_of(found: Any) -> list[str]:
    """Sentences: each variant against the single-task models, costs, and what to be careful about."""
    against = [_against_alone(found, variant) for variant in joint_of(found)]
    return [*against, *(_of_cost(name, costs, len(found.heads)) for name, costs in found.costs.items()), *_cautions(found)]


def _answer(found: Any) -> str:
    """Whether a variant is as good as the single-task models on all heads."""
    at_equal_cost = [variant for variant in joint_of(found) if variant.endswith(AT_EQUAL_COST)]
    at, shown = ("at equal cost", at_equal_cost) if at_equal_cost else ("in as many updates", joint_of(found))
    verdicts = {variant: {found.difference(variant, head).verdict for head in found.heads} for variant in shown}
    if any("unknown" in each for each in verdicts.values()):
        return f"Whether one encoder for all heads is better {at} cannot be said without intervals on all heads."
    ahead = [variant for variant, each in verdicts.items() if "worse" not in each and "better" in each]
    even = [variant for variant, each in verdicts.items() if each == {"within noise"}]
    if ahead:
        return f"Sharing the encoder is worth it {at}: no head worse than alone, one at least better with {quoted(ahead)}."
    if not even:
        return f"Sharing the encoder costs a head something {at}: with every variant, one head at least is worse than alone."
    serve = max(found.costs.get(variant.removesuffix(AT_EQUAL_COST), {}).get("serve", 0.0) for variant in even)
    return (
        f"Sharing the encoder costs nothing that {len(found.seeds)} seeds can show {at}: all heads are within the noise "
        f"of seeds of models of their own with {quoted(even)}.{' One encoder is cheaper to serve.' if serve < 1 else ''}"
    )


def _of_favoured(found: Any, variant: str, is_harmful: bool) -> str:
    """The variant that the validation data favour, and what it is on the test data."""
    verdicts = [found.difference(variant, head).verdict for head in found.heads]
    there = ", though with it one head at least is worse than alone there" if is_harmful else ""
    choice = f"The validation data favour {variant!r}{there}"
    if all(head in found.few_labels for head in found.heads):
        choice = f"The validation data have too few labels to favour a variant; none is cheaper than {variant!r}"
    return (
        f"{choice}. On the test data, which had no part in that choice, "
        f"{verdicts.count('better')} of {len(found.heads)} heads are better and {verdicts.count('worse')} worse than alone, "
        f"delta-m {_interval(found.delta_m(variant), percent=True)}."
    )


def _against_alone(found: Any, variant: str) -> str:
    words = []
    for head in found.heads:
        each = found.difference(variant, head)
        verdict = {"within noise": "within the noise of seeds", "unknown": "not comparable"}.get(each.verdict, each.verdict)
        words.append(f"{verdict} on {head!r}, {_interval(each)}")
    delta_m = _interval(found.delta_m(variant), percent=True)
    return f"{variant!r} against each head alone: {'; '.join(words)}; delta-m {delta_m}."


def _of_cost(variant: str, costs: Mapping[str, float], heads: int) -> str:
    update, serve = costs["update"], costs["serve"]
    size = f" It has {plain(costs['size'])} times their parameters." if "size" in costs else ""
    return (
        f"An update of {variant!r} takes {plain(update)} of the time in which each of the {heads} single-task models makes "
        f"one, so in the same time it makes {plain(1 / update)} times as many. A prediction for all heads takes "
        f"{plain(serve)} of the time of theirs{', because the encoder runs once' if serve < 1 else ''}.{size}"
    )


def _cautions(found: Any) -> list[str]:
    words = []
    if len(found.seeds) < 2:
        words.append("With one seed, no difference can be told from noise: pass three seeds at least.")
    elif len(found.seeds) < 3:
        words.append("With two seeds, intervals are very wide: pass three at least, better five or more.")
    number = len(joint_of(found)) * len(found.heads)
    if number >= 20 and len(found.seeds) > 1:
        words.append(
            f"Of {number} intervals, about {plain(0.05 * number)} exclude 0 by chance: repeat surprises with other seeds."
        )
    if found.few_labels:
        numbers = ", ".join(f"{head!r} ({number})" for head, number in found.few_labels.items())
        words.append(
            f"The validation data have too few labels of the rarer class for {numbers} to choose rates or variants by. "
            "These heads are ignored where others are left. Add such labels; with a single rate, none has to be chosen."
        )
    chosen, grid = chosen_rates(found.lines), found.lines[0]["settings"]
    grids = {name: chosen.get(name, grid)["rates"] for name in found.rates}
    at_edge = [name for name, each in grids.items() if len(each) > 1 and found.rates[name] in (each[0], each[-1])]
    if at_edge:
        ends = [each for name in at_edge for each in (grids[name][0], grids[name][-1])]
        words.append(
            f"The best learning rate is at the edge of the grid for {quoted(at_edge)}: extend `rates` beyond "
            f"{min(ends):g} and {max(ends):g}, or these variants may be compared below their best."
        )
    if found.split != TEST:
        words.append(
            "Variants are compared on the validation data, on which the learning rates were chosen on another seed."
        )
    return words
