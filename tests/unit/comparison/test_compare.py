"""Comparisons that train: the same start and order for each variant, rates by the tuning seed, equal cost, and going on.

Those that make many runs are programs.
"""

from __future__ import annotations

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, compare, comparison
from multihead.comparison import _run
from multihead.comparison._data import batches_of, batches_per_epoch
from tests.helpers import compared
from tests.helpers.compared import EAGER, HEADS, VARIANTS

OPTIONS = {"batch_size": 8, "options": EAGER, "verbose": 0}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A comparison on two seeds, with a grid of two rates, one of which is far too small, and its file."""
    path = tmp_path_factory.mktemp("compared") / "study.jsonl"
    variants = {name: VARIANTS[name] for name in ("size 0.1", "EqualNorms")}
    options = {**OPTIONS, "rates": (1e-5, 0.05), "equal_cost": ["EqualNorms"], "file": path}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_run, "ROUNDS", 1)
        found = compare(compared.build, compared.arrays, variants, 2, {"epochs": 2}, **options)
    return found, path, (variants, options)


def runs(lines, kind="final"):
    return [line for line in lines if line.get("run") == kind]


@pytest.mark.programs
def test_every_variant_of_a_seed_has_the_same_start_and_the_same_order_of_data(first):
    found, _, _ = first
    for seed in (0, 1, 1000):
        of_seed = [line for line in found.lines if line.get("seed") == seed]
        assert len(of_seed) >= 5 and len({line["start"] for line in of_seed}) == 1
        longest = max((line["order"] for line in of_seed), key=len)
        assert all(line["order"] == longest[: len(line["order"])] for line in of_seed)
    starts = {line["seed"]: line["start"] for line in found.lines if "run" in line}
    assert len(set(starts.values())) == 3


@pytest.mark.programs
def test_epochs_are_updates_and_equal_cost_is_that_of_measured_times(first):
    found, _, _ = first
    assert found.updates["alone"] == found.updates["size 0.1"] == 6  # 20 examples in batches of 8, twice
    (cost,) = (line for line in found.lines if "cost" in line)
    assert found.updates["EqualNorms, equal cost"] == round(6 / cost["update_ratio"])
    assert 0.2 < cost["update_ratio"] < 2 and 0 < cost["serve_ratio"] < 2
    assert "size 0.1, equal cost" not in found.variants


@pytest.mark.programs
def test_rates_are_chosen_on_the_tuning_seeds_for_every_variant_and_each_head_alone(first):
    found, _, _ = first
    tuned = runs(found.lines, "tune")
    assert {line["seed"] for line in tuned} == {1000} and {line["seed"] for line in runs(found.lines)} == {0, 1}
    grid = {(line["variant"], line["head"], line["at_equal_cost"]): set() for line in tuned}
    for line in tuned:
        grid[line["variant"], line["head"], line["at_equal_cost"]].add(line["rate"])
    assert len(grid) == 5 and all(rates == {1e-5, 0.05} for rates in grid.values())
    by_rate = {line["rate"]: line["metrics"]["validation"]["size_loss"] for line in tuned if line["head"] == "size"}
    assert found.rates["size alone"] == min(by_rate, key=by_rate.get) == 0.05


@pytest.mark.programs
def test_a_second_call_repeats_nothing_and_adds_variants_and_seeds(first, monkeypatch):
    found, path, (variants, options) = first
    before = path.read_text(encoding="utf-8")
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"run": "final", "variant": "si')  # as a crash leaves it
    calls = []
    monkeypatch.setattr("multihead.comparison._compare.run", lambda study, job: calls.append(job) or _run.run(study, job))
    again = compare(compared.build, compared.arrays, variants, 2, {"epochs": 2}, **options)
    assert calls == [] and path.read_text(encoding="utf-8") == before and again.to_dict() == found.to_dict()
    more = compare(
        compared.build,
        compared.arrays,
        {**variants, "plain sum": {}},
        [0],
        {"epochs": 2},
        **{**options, "equal_cost": False},
    )
    assert [(job.kind, job.variant.name, job.seed) for job in calls] == [("tune", "plain sum", 1000)] * 2 + [
        ("final", "plain sum", 0)
    ]
    assert more.variants == ("alone", "size 0.1", "EqualNorms", "plain sum") and more.seeds == (0,)
    assert comparison.read(path).seeds == (0,)  # that all variants of the file have


@pytest.mark.programs
def test_a_wider_grid_goes_on_in_the_same_file(first, tmp_path, monkeypatch):
    _, path, (variants, options) = first
    file = tmp_path / "study.jsonl"
    file.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    variants, options = {"size 0.1": variants["size 0.1"]}, {**options, "equal_cost": False}

    def comparison_on(rates, file):
        return compare(
            compared.build, compared.arrays, variants, [0], {"epochs": 2}, **{**options, "rates": rates, "file": file}
        )

    calls = []
    monkeypatch.setattr("multihead.comparison._compare.run", lambda study, job: calls.append(job) or _run.run(study, job))
    wider = comparison_on((1e-5, 0.05, 0.2), file)
    of_kind = [job.kind for job in calls]
    assert {job.rate for job in calls} == {0.2} and of_kind.count("tune") == 3  # each head alone, and the variant
    assert of_kind.count("final") == list(wider.rates.values()).count(0.2) > 0
    fresh = comparison_on((1e-5, 0.05, 0.2), None)
    assert wider.rates == fresh.rates and all(
        wider.values(variant, head) == fresh.values(variant, head) for variant in fresh.variants for head in HEADS
    )
    assert "edge of the grid" in " ".join(wider.findings) and "0.2" in wider.findings[-1]

    def as_read():
        found = comparison.read(file)  # on the seed that all variants of the file have
        return [found.values(variant, "size")[0] for variant in ("alone", "size 0.1")]

    assert as_read() == [wider.values(variant, "size")[0] for variant in ("alone", "size 0.1")]
    calls.clear()
    narrow = comparison_on((1e-5, 0.05), file)
    assert calls == [] and set(narrow.rates.values()) == {0.05}
    assert as_read() == [narrow.values(variant, "size")[0] for variant in ("alone", "size 0.1")]


@pytest.mark.programs
def test_rates_are_chosen_by_the_mean_over_several_tuning_seeds(first, tmp_path, monkeypatch):
    found, path, (variants, options) = first
    file = tmp_path / "study.jsonl"
    file.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    calls = []

    def failing_once(study, job):
        line = _run.run(study, job)
        calls.append(job)
        if (job.kind, job.seed, job.rate, job.head) == ("tune", 1001, 0.05, "size"):
            line["metrics"]["validation"]["size_loss"] = 1e6  # at the edge of stability, this rate fails at one seed
        return line

    monkeypatch.setattr("multihead.comparison._compare.run", failing_once)
    options = {**options, "tuning_seeds": [1000, 1001], "equal_cost": False, "file": file}
    variants = {"size 0.1": variants["size 0.1"]}
    more = compare(compared.build, compared.arrays, variants, [0], {"epochs": 2}, **options)
    tuned = [job for job in calls if job.kind == "tune"]
    assert {job.seed for job in tuned} == {1001} and len(tuned) == 2 * 3  # those on the first seed are known
    assert found.rates["size alone"] == 0.05 and more.rates["size alone"] == 1e-5
    assert more.rates["kind alone"] == found.rates["kind alone"]
    by_rate = {}
    for line in runs(more.lines, "tune"):
        if line["head"] == "kind":
            by_rate.setdefault(line["rate"], []).append(line["metrics"]["validation"]["kind_accuracy"])
    assert all(len(each) == 2 for each in by_rate.values())
    assert more.rates["kind alone"] == max(by_rate, key=lambda rate: np.mean(by_rate[rate]))
    calls.clear()
    other = compare(compared.build, compared.arrays, variants, [0], {"epochs": 2}, **{**options, "tuning_seeds": 1001})
    assert other.rates["size alone"] == 1e-5 and [job.kind for job in calls if job.kind == "tune"] == []


@pytest.mark.programs
def test_a_variant_may_have_a_wider_encoder_than_the_single_task_models(tmp_path, monkeypatch):
    monkeypatch.setattr(_run, "ROUNDS", 1)
    monkeypatch.setattr(_run, "LEAST_SECONDS", 0.0)
    wide = {"build": compared.build_wide}
    variants = {"plain sum": {"build": compared.build}, "wide": wide, "wide EqualNorms": {**wide, "balancer": "EqualNorms"}}
    file = tmp_path / "wide.jsonl"
    options = {**OPTIONS, "rates": 0.05, "equal_cost": ["wide"], "file": file}
    found = compare(compared.build, compared.arrays, variants, 1, 2, **options)
    starts = {}
    for line in runs(found.lines):
        starts.setdefault(line["variant"], set()).add(line["start"])
    assert starts["alone"] == starts["plain sum"] != starts["wide"] == starts["wide EqualNorms"]
    assert all(len(each) == 1 for each in starts.values())
    # An encoder of 3 inputs, a classifier of 3 classes, a regression: kernels and biases.
    alone = 4 * (3 + 1) * 2 + 3 * (4 + 1) + 1 * (4 + 1)
    assert found.costs["wide"]["size"] == pytest.approx((9 * (3 + 1) + (3 + 1) * (9 + 1)) / alone)
    assert f"It has {found.costs['wide']['size']:.3g} times their parameters." in " ".join(found.findings)
    assert all(np.isfinite(found.values(variant, head)).all() for variant in found.variants for head in HEADS)
    roles = {point.name: point.role for point in found.points()}
    assert (roles["plain sum"], roles["wide"]) == ("fixed", "rule")  # another model is not on the line of weights
    # The file knows which variants have other weights, and a narrower variant of the same name is another one.
    options["equal_cost"] = False
    compare(compared.build, compared.arrays, {"narrow": {}}, 1, 2, **options)
    with pytest.raises(ValueError, match=r"`variants\['wide'\]` must be the same as in `file`.*'build': 'build_wide'"):
        compare(compared.build, compared.arrays, {"wide": {}}, 1, 2, **options)
    # So does a variant whose function was edited.
    monkeypatch.setattr(compared, "build_wide", _named("build_wide", functools.partial(compared.build, units=8)))
    with pytest.raises(
        ValueError, match=r"`variants\['wide'\]` must be the same as in `file`, and its `build` make the same weights"
    ):
        compare(compared.build, compared.arrays, {"wide": {"build": compared.build_wide}}, 1, 2, **options)


def _named(name, function):
    def made():
        return function()

    made.__qualname__ = name
    return made


# Data


@pytest.mark.programs
def test_data_sets_that_shuffle_come_in_the_same_order_if_a_function_makes_them():
    options = {**OPTIONS, "rates": 0.05, "equal_cost": False}
    found = compare(compared.build, compared.datasets, {"plain sum": {}}, 1, {"epochs": 2}, **options)
    orders = {tuple(line["order"]) for line in runs(found.lines)}
    assert len(orders) == 1 and found.updates["alone"] == 6
    with pytest.raises(ValueError, match="`data` must give the same batches in the same order for a seed. Received: other"):
        compare(compared.build, compared.datasets(), {"plain sum": {}}, 1, {"epochs": 2}, **options)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda x, y: (x, y), "`data` must be a dict with 'train' and 'validation'.*Received: tuple"),
        (lambda x, y: {"train": (x, y), "validatoin": (x, y)}, "Received: a dict of 'train', 'validatoin'. Did you mean 'validation'"),
        (lambda x, y: {"train": (x, y), "validation": iter([(x, y)])}, r"`data\['validation'\]` must be \(x, y\).*list_iterator"),
        (lambda x, y: {"train": (x, {"kind": y["kind"]}), "validation": (x, y)}, r"`data\['train'\]` must have targets for every head.*'size'"),
        (lambda x, y: {"train": (x, {**y, "sice": x}), "validation": (x, y)}, r"`data\['train'\]` must name only heads: 'sice' is not a head"),
        (lambda x, y: {"train": tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat(), "validation": (x, y)},
         "`target_scaling` of 'size' cannot be learned from data that .* may have no end.*or pass data with an end"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_compared_on(data, message):
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        compare(compared.build, data(*compared.examples(20)), {"a": {}}, 1, {"epochs": 1}, **OPTIONS)


def test_a_data_set_that_yields_nothing_is_an_error():
    x, y = compared.examples(20)
    empty = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda *_: False)
    with pytest.raises(ValueError, match="must yield at least one batch per pass. Received: a data set without any"):
        next(batches_of(empty, 8, 0))
    with pytest.raises(ValueError, match="`budget` must be a number of updates for data that have no end. Received: epochs"):
        batches_per_epoch(tf.data.Dataset.range(3).repeat(), 8)


# Errors


@functools.cache
def the_same():
    return compared.build()


UNITS = itertools.count(5)


def growing():
    return compared.build(units=next(UNITS))


def with_another_loss():
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    kind = keras.layers.Dense(3, activation="softmax")
    trainer.add_head("kind", kind, keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
    trainer.add_head("size", keras.layers.Dense(1), "mae")
    return trainer


def with_other_metrics():
    trainer = with_another_loss()
    trainer.remove_head("kind")
    trainer.add_head("kind", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    return trainer


def other_heads():
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    for name in ("kind", "sise"):
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    return trainer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"build": compared.build()}, "`build` must be a function without arguments"),
        ({"build": dict}, "`build` must return a `MultiHeadTrainer` with at least two heads. Received: a dict"),
        ({"variants": {}}, "`variants` must be a dict of at least one variant"),
        ({"variants": {"alone": {}}}, "The name of a variant in `variants` must be a string other than 'alone'.*Choose another name"),
        ({"variants": {"a": "EqualNorms"}}, r"`variants\['a'\]` must be a dict of options of `compile`, `weights`, `build` and `head_rates`"),
        ({"variants": {"a": {"balancr": None}}}, r"`variants\['a'\]` must have only these options of `compile`.*Did you mean 'balancer'"),
        ({"variants": {"a": {"gradient_accumulation_steps": 2}}}, "Received: 'gradient_accumulation_steps'. What is the same for all variants"),
        ({"variants": {"a": {"balancer": "EqualNorm"}}}, "Did you mean '?.*EqualNorms"),
        ({"variants": {"a": {"weights": {"sice": 1}}}}, "'sice' is not a head.*Did you mean 'size'"),
        ({"variants": {"a": {"build": dict}}}, r"`variants\['a'\]\['build'\]` must return a `MultiHeadTrainer`.*Received: a dict"),
        ({"variants": {"a": {"build": compared.build()}}}, r"\['build'\]` must be a function without arguments.*`functools.partial` gives it"),
        ({"variants": {"a": {"build": the_same}}}, r"must make a new trainer with .* the same trainer, or other weights"),
        ({"variants": {"a": {"build": growing}}}, "Received: the same trainer, or other weights, the second"),
        ({"variants": {"a": {"build": with_other_metrics}}}, r"must judge head 'kind' .*another 'metrics' .metrics: \[accuracy\]; metrics: \[\]"),
        ({"variants": {"a": {"build": with_another_loss}}}, "must judge head 'size' .*another 'loss', 'target_scaling' .loss: mean_squared"),
        ({"variants": {"a": {"build": other_heads}}}, r"`variants\['a'\]\['build'\]` must .* heads of `build`: 'kind', 'size'. Received: 'kind', 'sise'"),
        ({"seeds": 0}, "`seeds` must be a number of seeds, at least 1, or a list of different"),
        ({"tuning_seeds": 0}, "`tuning_seeds` must be a seed, or .* none of `seeds`, 0. Received: tuning_seeds=0"),
        ({"rates": (0.1, -1)}, "`rates` must be a grid of learning rates: finite numbers above 0"),
        ({"budget": 0}, "`budget` must be a whole number of at least 1"),
        ({"budget": {"steps": 3}}, "`budget` must be a number of updates, or a dict with one of 'updates' and 'epochs'"),
        ({"metrics": "kind_accuracy"}, "`metrics` must be a dict by head name"),
        ({"metrics": {"kind": "kind_acuracy", "size": "size_loss"}}, r"`metrics\['kind'\]` must be one of.*Did you mean 'kind_accuracy'"),
        ({"metrics": {"kind": ("kind_accuracy", "up"), "size": "size_loss"}}, "must say whether the metric is better when lower"),
        ({"measure": len}, "`metrics` must name one metric per head with `measure`"),
        ({"optimizer": "adam"}, "`optimizer` must be a class of optimizers, or a function of the learning rate"),
        ({"options": {"balancer": "Sum"}}, "`options` must have only these options of `compile`.*joint training in `variants`"),
        ({"equal_cost": ["b"]}, "`equal_cost` must be one of 'a'"),
        ({"file": "no/such/folder.jsonl"}, "`file` must be a file in a folder that exists"),
        ({"processes": 0}, "`processes` must be a whole number of at least 1"),
        ({"processes": 2, "build": lambda: None}, "must be importable with `processes` above 1: functions"),
    ],
)  # fmt: skip
def test_wrong_arguments(change, message):
    given = {"build": compared.build, "data": compared.arrays, "variants": {"a": {}}, "seeds": 1, "budget": 1, **OPTIONS}
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        compare(**{**given, "rates": 0.01, **change})


def in_raw_units(scaling=None, metrics=("mae",)):
    trainer = compared.build()
    module = trainer.heads["size"].module
    trainer.remove_head("size")
    trainer.add_head("size", module, "mse", metrics=list(metrics), target_scaling=scaling)
    return trainer


def standardized():
    return in_raw_units("standardize")


def test_a_scaling_of_a_variant_trains_as_one_of_add_head():
    """The suggestion of `diagnose` and its parts are variants, judged in the targets' units."""
    trainer = in_raw_units()
    trainer.compile("sgd", run_eagerly=True)
    report = trainer.diagnose(*compared.arrays()["train"], batch_size=8)
    assert list(report.parts) == ["target_scaling", "balancer"]
    scaled = {"target_scaling": report.parts["target_scaling"], "whole": report.suggestion}
    variants = {"plain": {}, **scaled, "own build": {"build": standardized}}
    options = {**OPTIONS, "rates": 0.05, "equal_cost": False}
    found = compare(in_raw_units, compared.arrays, variants, 1, 4, **options)
    values = {name: found.values(name, "size")[0] for name in variants}
    assert values["target_scaling"] == pytest.approx(values["own build"], rel=1e-6) != pytest.approx(values["plain"])
    assert values["target_scaling"] < 0.5 * values["plain"]  # an error of 50 at the start
    assert found.scaled == {"target_scaling", "whole", "own build"}
    assert "leaves out 'target_scaling', 'whole', 'own build': they scale targets that the single-task" in found.verdict
    assert not any(
        line["is_fixed"] for line in found.lines if line.get("variant") == "target_scaling" and "is_fixed" in line
    )


@pytest.mark.parametrize("variant", [{"target_scaling": {"size": "log"}}, {"build": standardized}])
def test_a_head_that_is_scaled_in_one_variant_is_not_judged_by_its_loss(variant):
    build = functools.partial(in_raw_units, metrics=())
    variant = {
        name: functools.partial(in_raw_units, "standardize", ()) if name == "build" else v for name, v in variant.items()
    }
    with pytest.raises(
        ValueError, match=r"'target_scaling'\]` must be of heads that are judged in|another 'target_scaling'"
    ):
        compare(build, compared.arrays, {"a": variant}, 1, 1, **{**OPTIONS, "rates": 0.01, "equal_cost": False})


CALLS = []


def restless():
    """A model whose initial weights differ from call to call."""
    CALLS.append(1)
    trainer = compared.build()
    trainer.encoder.add(keras.layers.Dense(2, kernel_initializer=keras.initializers.Constant(float(len(CALLS)))))
    return trainer


@pytest.mark.programs
def test_starts_that_differ_are_an_error():
    with pytest.raises(
        ValueError, match="`build` must make the same initial weights whenever .*other weights in the variant"
    ):
        compare(restless, compared.arrays, {"a": {}}, 1, 1, **OPTIONS, rates=0.01, equal_cost=False)


@pytest.mark.programs
def test_rates_with_which_nothing_stays_finite(monkeypatch):
    options = {**OPTIONS, "equal_cost": False, "options": {**EAGER, "max_skipped_updates": 1}}
    build, variants = unscaled, {"plain sum": {}}
    found = compare(build, compared.arrays, variants, 1, 4, **options, optimizer=keras.optimizers.SGD, rates=(1e-3, 1e30))
    failed = [line for line in found.lines if line.get("failed")]
    assert {line["rate"] for line in failed} == {1e30} and "`max_skipped_updates=1` ends training" in failed[0]["failed"]
    assert set(found.rates.values()) == {1e-3}
    as_failed = {
        "metrics": failed[0]["metrics"],
        "failed": failed[0]["failed"],
        "start": failed[0]["start"],
        "order": [],
        "seconds": 0.0,
    }
    monkeypatch.setattr("multihead.comparison._compare.run", lambda _, job: {**job.line, **as_failed})
    with pytest.raises(ValueError, match="`rates` must have a learning rate with which .* stays finite"):
        compare(build, compared.arrays, variants, 1, 4, **options, optimizer=keras.optimizers.SGD, rates=(1e29, 1e30))


def unscaled():
    """A model whose squared error overflows once its weights are large."""
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("kind", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    return trainer
