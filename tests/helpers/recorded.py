"""Lines of a comparison of two heads, as its file has them."""

from __future__ import annotations

from multihead.comparison import Comparison

SEEDS = range(4)
ALONE = {"kind": [0.80, 0.82, 0.79, 0.81], "size": [2.0, 2.2, 1.9, 2.1]}
VARIANTS = {
    "plain sum": {"kind": [0.70, 0.74, 0.69, 0.70], "size": [1.0, 1.3, 0.9, 1.0]},
    "size 0.3": {"kind": [0.75, 0.79, 0.73, 0.76], "size": [1.5, 1.8, 1.4, 1.5]},
    "EqualNorms": {"kind": [0.80, 0.81, 0.80, 0.80], "size": [1.9, 2.4, 1.8, 2.2]},
}
TWICE = {"kind": [0.85, 0.88, 0.84, 0.85], "size": [1.7, 1.8, 1.6, 1.9]}


def settings(**others):
    found = {
        "heads": ["kind", "size"],
        "metrics": {"kind": ["kind_accuracy", "max"], "size": ["size_mae", "min"]},
        "split": "test",
    }
    return {"settings": {**found, **others}}


def run(variant, seed, values, *, head="", at_equal_cost=False, rate=0.01, kind="final"):
    names = {"kind": "kind_accuracy", "size": "size_mae"}
    metrics = {names.get(each, each): value for each, value in values.items()}
    return {
        "run": kind,
        "variant": variant,
        "head": head,
        "at_equal_cost": at_equal_cost,
        "seed": seed,
        "rate": rate,
        "updates": 160 if at_equal_cost else 100,
        "metrics": {"test": metrics, "validation": {}},
    }


def lines():
    found = [settings()]
    found += [{"variant": variant, "is_fixed": variant != "EqualNorms", "how": {}} for variant in VARIANTS]
    found += [{"chosen": "EqualNorms, equal cost", "rate": 0.1, "rates": [0.001, 0.01, 0.1]}]
    found += [{"cost": "EqualNorms", "update_ratio": 0.625, "serve_ratio": 0.5}]
    for seed in SEEDS:
        found += [run("alone", seed, {head: values[seed]}, head=head) for head, values in ALONE.items()]
        found += [
            run(variant, seed, {head: each[seed] for head, each in values.items()}) for variant, values in VARIANTS.items()
        ]
        found += [run("EqualNorms", seed, {head: each[seed] for head, each in TWICE.items()}, at_equal_cost=True, rate=0.1)]
    return [*found, run("plain sum", 99, {"kind": 0.1, "size": 9.0}), run("plain sum", 0, {"kind": 0.0}, kind="tune")]


def on_validation(values):
    """The lines with metrics of variants on the validation data."""
    given = lines()
    for line in given:
        if line.get("run") == "final" and line["seed"] in SEEDS:
            label = f"{line['variant']}, equal cost" if line["at_equal_cost"] else line["variant"]
            of_heads = ALONE if label == "alone" else values[label]
            heads = [line["head"]] if line["head"] else list(of_heads)
            names = {"kind": "kind_accuracy", "size": "size_mae"}
            line["metrics"]["validation"] = {names[head]: of_heads[head][line["seed"]] for head in heads}
    return Comparison(given)
