"""The tables and the figure of `benchmarks.equal_cost`, from its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._as_large import LARGE
from benchmarks._equal_cost_front import DIGITS, STUDY, front_of
from benchmarks._equal_cost_lines import (
    ALONE,
    ENDING,
    RATES,
    Line,
    change,
    of_heads,
    signs,
    values,
    with_alone,
)
from benchmarks._published import interval, markdown, number_of, spread
from benchmarks._results import read_lines as read
from multihead._display.drawing import GREY, colour, new_figure, open_axis, title
from multihead.comparison import Difference
from multihead.comparison._findings import costs_of, difference_of, favoured, relative_changes

RULE, EQUAL = "NormFloor", "NormFloor 1"
"""The rule with its default, of which one way to train is chosen on the validation data, and with equal running norms."""
CHOSEN = f"{RULE}, chosen on the validation data"


def variants_of(lines: Sequence[Line]) -> list[str]:
    """The variants that were trained at equal cost."""
    found = dict.fromkeys(
        variant.removesuffix(ENDING) for line in lines for variant in line["figures"] if variant.endswith(ENDING)
    )
    return list(found)


def verdicts(line: Line, variant: str) -> tuple[int, int]:
    """How many heads are better and worse than alone, by the 95 % interval."""
    found = [each.verdict for each in of_heads(line, variant).values()]
    return found.count("better"), found.count("worse")


def tables(path: Path) -> str:
    """Delta-m and heads better and worse for each data set and optimizer, and what is reached where."""
    lines = read(path)
    if not lines:
        return ""
    variants = variants_of(lines)
    large = [variant for variant in variants if variant.endswith(LARGE)]
    others = [variant for variant in variants if variant not in large]
    parts = [
        *_chosen(lines),
        _changes(lines, others, ENDING, "The time of the single-task models"),
        _changes(lines, large, ENDING, "The time of the single-task models, and an encoder as large as theirs together"),
        _changes(lines, others, "", "As many updates as each single-task model"),
        _changes(lines, large, "", "As many updates, and an encoder as large as those of the single-task models together"),
        _wider(lines, large),
        _goal(lines),
        _figures(lines),
        *(front_of(lines, which) for which in (STUDY, DIGITS)),
    ]
    return "\n".join(part for part in parts if part)


def chosen(line: Line, rules: Sequence[str] = (RULE,)) -> str | None:
    """The variant that the validation data favour: a rule with either encoder, in as many updates or at equal cost.

    None unless there are such figures of each rule.
    """
    endings = [f"{rates}{size}{cost}" for rates in ("", RATES) for size in ("", LARGE) for cost in ("", ENDING)]
    of_rules = [[f"{rule}{each}" for each in endings if f"{rule}{each}" in line.get("validation", {})] for rule in rules]
    variants = [variant for each in of_rules for variant in each]
    if not all(of_rules):
        return None
    on_validation = {variant: values(line, variant, "validation") for variant in (ALONE, *variants)}
    shared = min(each.shape[1] for each in on_validation.values())
    alone, *others = (each[:, :shared] for each in on_validation.values())
    costs = costs_of(variants, line["updates"], line["costs"])
    return favoured(dict(zip(variants, others)), alone, signs(line), costs, counted(line))


def counted(line: Line) -> list[bool]:
    """For each head, whether the validation data have enough labels of it to choose by."""
    return [head not in line.get("few_labels", {}) for head in line["directions"]]


def _chosen(lines: Sequence[Line]) -> list[str]:
    """What the validation data favour for each data set and optimizer, and its figures on the test data."""
    where = (
        "in as many updates or at equal cost, with an encoder as wide as alone or as large as those of the single-task "
        "models together, chosen on the validation data: delta-m on the test data in percent."
    )
    titles = {
        (RULE,): f"`{RULE}` with its default, {where}",
        (RULE, EQUAL): f"`{RULE}` with its default or a floor of 1, {where}",
    }
    return [_choices(lines, rules, title) for rules, title in titles.items()]


def _choices(lines: Sequence[Line], rules: Sequence[str], title: str) -> str:
    """What the validation data favour among some rules; empty if no line has figures of each."""
    rows, reached = [], []
    for line in lines:
        variant = chosen(line, rules)
        if variant is None:
            continue
        better, worse = verdicts(line, variant)
        found = change(line, variant)
        reached.append((found.verdict == "better", found.mean > 0, worse == 0))
        losses = {head: each.mean for head, each in of_heads(line, variant).items()}
        least = min(losses, key=lambda head: losses[head])
        row = {
            "data set": line["set"],
            "optimizer": line["optimizer"],
            "seeds": number_of(line["seeds"]).split()[0],
            "floor": "1" if variant.startswith(EQUAL) else "default",
            "encoder": "as large" if LARGE in variant else "as wide",
            "heads' rates": "as alone" if RATES in variant else "one",
            "updates": f"{line['updates'][variant] / line['updates'][ALONE]:.2f}",
            "delta-m": interval(found, 1),
            "heads better, worse": f"{better}, {worse} of {len(line['directions'])}",
            "lowest change": f"{losses[least]:+.1f} ({least})",
        }
        if not any(counted(line)):
            row["data set"] = f"{line['set']} (cheapest variant)"
        rows.append(row)
        if len(rules) == 1:
            del row["floor"]
    if not rows:
        return ""
    ahead, above, fine = (sum(each) for each in zip(*reached))
    summary = f"{len(rows)} in all: delta-m is above 0 in {above}, with an interval above 0 in {ahead}"
    table = markdown(list(rows[0]), [list(row.values()) for row in rows])
    return f"{title}\n\n{table}\n{summary}; no head is worse in {fine}.\n"


def _changes(lines: Sequence[Line], variants: Sequence[str], ending: str, budget: str) -> str:
    """Delta-m and heads of some variants, for each data set and optimizer in which one is; empty without any."""
    rows = []
    for line in lines:
        cells = []
        for variant in (f"{variant}{ending}" for variant in variants):
            if variant not in line["figures"]:
                cells.append("")
                continue
            better, worse = verdicts(line, variant)
            ratio = line["updates"][variant] / line["updates"][ALONE]
            updates = f"; {ratio:.2f}" if ending else ""
            seeds = values(line, variant).shape[1]
            fewer = "" if seeds == len(line["seeds"]) else f"; {number_of(range(seeds))}"
            heads = f"{better}, {worse} of {len(line['directions'])}"
            cells.append(f"{interval(change(line, variant), 1)}; {heads}{updates}{fewer}")
        if any(cells):
            rows.append([line["set"], line["optimizer"], number_of(line["seeds"]).split()[0], *cells])
    if not rows:
        return ""
    what = "delta-m in percent; heads better, worse" + ("; updates against alone" if ending else "")
    return f"{budget}: {what}.\n\n" + markdown(["data set", "optimizer", "seeds", *variants], rows)


def _wider(lines: Sequence[Line], large: Sequence[str]) -> str:
    """The larger encoders against the others of the same variants, seed by seed, at equal cost; empty without any."""
    rows = []
    for line in lines:
        cells = []
        for variant in large:
            pair = f"{variant}{ENDING}", f"{variant.removesuffix(LARGE)}{ENDING}"
            known = set(pair) <= set(line["figures"])
            found = None if not known else against(line, *pair)
            cells.append("" if found is None else f"{interval(found, 1)}; {number_of(range(found.seeds))}")
        if any(cells):
            rows.append([line["set"], line["optimizer"], *cells])
    if not rows:
        return ""
    title = "The larger encoder against the other one, at equal cost: difference of delta-m in percent, paired by seed."
    return f"{title}\n\n" + markdown(["data set", "optimizer", *large], rows)


def against(line: Line, variant: str, other: str) -> Difference:
    """The difference of the mean relative changes of two variants, in percent, at the seeds that both have."""
    changes = [100 * relative_changes(*with_alone(line, each), signs(line)) for each in (variant, other)]
    shared = min(map(len, changes))
    return difference_of(changes[0][:shared] - changes[1][:shared], 0.95)


def _figures(lines: Sequence[Line]) -> str:
    """The figures of the heads with Adam, alone and at equal cost."""
    variants = variants_of(lines)
    rows = []
    for line in (line for line in lines if line["optimizer"] == "Adam"):
        found = {
            variant: values(line, variant)
            for variant in (ALONE, *(f"{variant}{ENDING}" for variant in variants))
            if variant in line["figures"]
        }
        for k, (head, metric) in enumerate(line["metrics"].items()):
            cells = [
                spread(found[variant][k]) if variant in found else ""
                for variant in (ALONE, *(f"{variant}{ENDING}" for variant in variants))
            ]
            rows.append([f"{line['set']}: {metric if metric.startswith(head) else head}", *cells])
    return markdown(["with Adam, at equal cost", ALONE, *variants], rows) if rows else ""


def _goal(lines: Sequence[Line]) -> str:
    """In how many cells the mean is better than alone, no head is worse, and both, at equal cost."""
    rows = []
    for variant in variants_of(lines):
        known = [line for line in lines if f"{variant}{ENDING}" in line["figures"]]
        means = [change(line, variant + ENDING).verdict == "better" for line in known]
        unharmed = [verdicts(line, variant + ENDING)[1] == 0 for line in known]
        both = sum(mean and fine for mean, fine in zip(means, unharmed))
        worst = min(
            ((each.mean, f"{head} of {line['set']}, {line['optimizer']}")
             for line in known for head, each in of_heads(line, variant + ENDING).items()
             if each.verdict == "worse"),
            default=None,
        )  # fmt: skip
        shown = "none" if worst is None else f"{worst[0]:+.1f} % ({worst[1]})"
        rows.append([variant, str(len(known)), str(sum(means)), str(sum(unharmed)), str(both), shown])
    columns = ["at equal cost", "data sets and optimizers", "mean better", "no head worse", "both", "largest loss of a head"]
    return markdown(columns, rows)


def draw(path: Path) -> Any:
    """Draws delta-m at equal cost, and of what the validation data favour; None without lines.

    A panel for each optimizer, a row for each data set. Variants with other learning rates for the heads are only among
    those that the validation data may favour.

    Args:
        path: The file of the results.
    """
    lines = read(path)
    if not lines:
        return None
    sets, optimizers = (list(dict.fromkeys(line[key] for line in lines)) for key in ("set", "optimizer"))
    variants = [*(variant for variant in variants_of(lines) if RATES not in variant), CHOSEN]
    height = 1.4 + 0.14 * len(variants) * len(sets)
    figure, axes = new_figure("`benchmarks.equal_cost`", 1, len(optimizers), (4.2 * len(optimizers), height))
    for axis, optimizer in zip(axes[0], optimizers):
        for line in (line for line in lines if line["optimizer"] == optimizer):
            for number, variant in enumerate(variants):
                shown = chosen(line) if variant == CHOSEN else variant + ENDING
                if shown not in line["figures"]:
                    continue
                found = change(line, shown)
                place = len(sets) - 1 - sets.index(line["set"]) + 0.8 / len(variants) * ((len(variants) - 1) / 2 - number)
                axis.plot([found.low, found.high], [place, place], color=colour(number), lw=1.5, alpha=0.6)
                axis.plot([found.mean], [place], "D" if variant == CHOSEN else "o", color=colour(number), ms=5)
        axis.axvline(0, color=GREY, lw=0.8, ls=":")
        axis.set_ylim(-0.6, len(sets) - 0.4)
        axis.set_xscale("symlog", linthresh=10)
        axis.set_xticks([-100, -10, 0, 10, 100], ["-100", "-10", "0", "10", "100"])
        axis.set_yticks(range(len(sets)), sets[::-1] if axis is axes[0][0] else [""] * len(sets))
        axis.set_xlabel("delta-m against alone, percent", color=GREY)
        open_axis(axis)
        title(axis, optimizer, "right of 0: sharing pays")
    for number, variant in enumerate(variants):
        place = 0.5 + 0.1 * ((len(variants) - 1) / 2 - number)
        axes[0][-1].annotate(variant, (1.02, place), xycoords="axes fraction", color=colour(number), fontsize=9, va="center")
    return figure
