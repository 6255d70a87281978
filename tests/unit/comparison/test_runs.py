"""Runs of a comparison: against what Keras trains, stopped and begun again, in several processes, and of the tutorial."""

from __future__ import annotations

import re
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import multihead
from multihead import MultiHeadTrainer, comparison, rates, weighting
from tests.helpers import compared
from tests.helpers.sources import ROOT

OPTIONS = {"options": compared.EAGER, "batch_size": 8, "verbose": 0}


def a_comparison(variants=None, data=None, **given):
    """A comparison of a few updates, without what takes time."""
    defaults = {"seeds": 2, "budget": 3, "rates": 0.01, "equal_cost": False, **OPTIONS}
    variants = {"plain sum": {}} if variants is None else variants
    build = given.pop("build", compared.build)
    return multihead.compare(build, compared.arrays() if data is None else data, variants, **{**defaults, **given})


def build_without_chance():
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    trainer.add_head("kind", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("size", keras.layers.Dense(1), "mse", weight=0.5)
    return trainer


def the_batches(seed, number, size=8):
    """The batches of a seed, as the documentation of `compare` has them: passes in orders of their own."""
    x, y = compared.arrays()["train"]
    generator, found = np.random.default_rng(seed), []
    while len(found) < number:
        order = generator.permutation(len(x))
        chosen = [order[start : start + size] for start in range(0, len(x), size)]
        found += [(x[rows], {name: values[rows] for name, values in y.items()}) for rows in chosen]
    return found[:number]


def test_runs_are_what_keras_trains_with_the_same_batches_and_a_rate_that_decays_to_zero():
    seed, rate, updates = 3, 0.05, 4
    variants = {"size 2": {"weights": {"size": 2.0}}}
    found = a_comparison(variants, build=build_without_chance, seeds=[seed], budget=updates, rates=rate)
    x, y = compared.arrays()["test"]
    for variant, weights in {
        "alone": {"kind": 1.0},
        "also alone": {"size": 1.0},
        "size 2": {"kind": 1.0, "size": 2.0},
    }.items():
        keras.utils.set_random_seed(seed)
        trainer = build_without_chance()
        trainer.compile("sgd", run_eagerly=True)
        trainer.evaluate(*the_batches(seed, 1)[0], verbose=0)  # which builds it
        inputs = keras.Input((3,))
        shared = trainer.encoder(inputs)
        outputs = {name: trainer.heads[name].module(shared) for name in weights}
        twin = keras.Model(inputs, outputs)
        losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
        twin.compile(
            keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(rate, updates)),
            loss={name: losses[name] for name in weights},
            loss_weights=weights,
            run_eagerly=True,
        )
        for batch_x, batch_y in the_batches(seed, updates):
            twin.train_on_batch(batch_x, {name: batch_y[name] for name in weights})
        predicted = {name: np.asarray(value, np.float64) for name, value in twin.predict(x, verbose=0).items()}
        expected = {
            "kind": lambda p: -np.log(p["kind"][np.arange(len(x)), y["kind"]]).mean(),
            "size": lambda p: ((p["size"] - y["size"]) ** 2).mean(),
        }
        for head in weights:
            assert found.values(variant.removeprefix("also "), head)[0] == pytest.approx(expected[head](predicted), rel=2e-4)


def small_sizes():
    """The parts of the data, with sizes whose squared error allows only a small learning rate."""
    return {part: (x, {**y, "size": y["size"] / 2}) for part, (x, y) in compared.arrays().items()}


@pytest.mark.thorough
def test_heads_may_have_the_learning_rates_that_were_chosen_for_them_alone():
    """Against a tape with an optimizer for the encoder and for each head."""
    seed, updates = 3, 4
    given = {
        "data": small_sizes(),
        "build": build_without_chance,
        "optimizer": keras.optimizers.SGD,
        "seeds": [seed],
        "budget": updates,
    }
    found = a_comparison({"own": {"head_rates": "alone"}}, **given, rates=(0.03, 1.5))
    of_parts = {"encoder": found.rates["own"], **found.head_rates["own"]}
    assert found.head_rates["own"] == {"kind": 1.5, "size": 0.03} == {h: found.rates[f"{h} alone"] for h in compared.HEADS}
    keras.utils.set_random_seed(seed)
    trainer = build_without_chance()
    trainer.compile("sgd", run_eagerly=True)
    x, y = small_sizes()["test"]
    trainer.evaluate(x, y, verbose=0)  # which builds it
    parts = {"encoder": trainer.encoder, **{name: head.module for name, head in trainer.heads.items()}}
    optimizers = {
        name: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(rate, updates)) for name, rate in of_parts.items()
    }
    variables = {name: list(part.trainable_variables) for name, part in parts.items()}
    for batch_x, batch_y in the_batches(seed, updates):
        with tf.GradientTape(persistent=True) as tape:
            hidden = parts["encoder"](batch_x)
            kind = keras.losses.sparse_categorical_crossentropy(batch_y["kind"], parts["kind"](hidden))
            size = tf.square(parts["size"](hidden) - batch_y["size"] / 2)
            loss = tf.reduce_mean(kind) + 0.5 * tf.reduce_mean(size)
        for name, optimizer in optimizers.items():
            optimizer.apply_gradients(zip(tape.gradient(loss, variables[name]), variables[name]))
    predicted = np.asarray(parts["size"](parts["encoder"](x)), np.float64)
    assert found.values("own", "size")[0] == pytest.approx(((predicted - y["size"]) ** 2).mean(), rel=2e-4)
    assert "; heads as alone" in found.table() and not found.points()[1].role == "fixed"


def test_rates_of_heads_that_cannot_be_as_alone():
    with pytest.raises(
        ValueError, match=r"`variants\['a'\]\['head_rates'\]` must be 'alone'.*Received: 0.1. Give other rates"
    ):
        a_comparison({"a": {"head_rates": 0.1}})

    def build():
        trainer = build_without_chance()
        size = replace(trainer.heads["size"], learning_rate_multiplier=rates.Stages({0: 0, 2: 1.0}))
        trainer.remove_head("size")
        trainer.add_head("size", **vars(size))
        return trainer

    with pytest.raises(
        ValueError, match="needs heads whose `learning_rate_multiplier` is a number. Received: head 'size' with"
    ):
        a_comparison({"a": {"head_rates": "alone"}}, build=build)


class Stopped(RuntimeError):
    """As if the program was killed."""


@pytest.mark.programs
@pytest.mark.parametrize("build", [compared.build, pytest.param(compared.build_with_dropout, marks=pytest.mark.thorough)])
def test_a_comparison_that_was_stopped_goes_on_and_ends_with_the_same_lines(tmp_path, build):
    variants = {"size 0.1": {"weights": {"size": 0.1}}}
    calls = {"left": 0, "all": 0}

    def measure(trainer, part):
        if calls["left"] == 0:
            raise Stopped
        calls["left"] -= 1
        calls["all"] += 1
        assert set(part[1]) == set(trainer.heads)
        return trainer.evaluate(*part, verbose=0, return_dict=True)

    given = {
        "measure": measure,
        "metrics": {"kind": ("kind_loss", "min"), "size": ("size_loss", "min")},
        "rates": (0.01, 0.1),
        "seeds": 1,
        "budget": 1,
        "build": build,
    }
    calls["left"] = 1000
    expected = a_comparison(variants, **given)
    for_all, calls["all"] = calls["all"], 0
    file = tmp_path / "lines.jsonl"
    calls["left"] = 9
    with pytest.raises(Stopped):
        a_comparison(variants, **given, file=file)
    with open(file, "a", encoding="utf-8") as lines:
        lines.write('{"run": "final", "ar')
    calls["left"] = 1000
    found = a_comparison(variants, **given, file=file)
    assert compared.without_times(found.lines) == compared.without_times(expected.lines)
    assert calls["all"] == for_all + 1  # one of two parts was measured when it stopped
    before = calls["all"]
    assert str(a_comparison(variants, **given, file=file)) == str(found) and calls["all"] == before
    with pytest.raises(ValueError, match=r"`file` must belong to the same settings.*batch_size: 8 in the file, 4 now"):
        a_comparison(variants, **given, file=file, **{"batch_size": 4})
    with pytest.raises(ValueError, match=r"`variants\['size 0.1'\]` must be the same as in `file`.*another name"):
        a_comparison({"size 0.1": {"weights": {"size": 0.2}}}, **given, file=file)


@pytest.mark.programs
def test_two_processes_and_the_command_give_the_same_lines(tmp_path, capsys):
    from multihead.__main__ import main  # noqa: PLC0415 - the command

    config = tmp_path / "my_small_study.py"
    config.write_text(
        "from tests.helpers.compared import VARIANTS, EAGER, arrays, build\n"
        "data, variants, seeds, budget = arrays(), {'EqualNorms': VARIANTS['EqualNorms']}, 1, 1\n"
        "rates, equal_cost, options, batch_size = 0.01, False, EAGER, 8\n",
        encoding="utf-8",
    )
    main(["compare", str(config), "--processes", "2"])
    printed = capsys.readouterr().out
    assert "against each head alone" in printed and " of 3: EqualNorms, seed 0: " in printed
    assert (tmp_path / "my_small_study.png").read_bytes().startswith(b"\x89PNG")
    found = comparison.read(tmp_path / "my_small_study.jsonl")
    expected = a_comparison({"EqualNorms": compared.VARIANTS["EqualNorms"]}, seeds=1, budget=1)
    assert compared.without_times(found.lines) == compared.without_times(expected.lines)
    with pytest.raises(SystemExit, match="python -m multihead compare: `config` must be a Python file"):
        main(["compare", str(tmp_path / "none.py")])
    config.with_name("my_other_study.py").write_text("seeds = 3\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"compare\(\) missing .*'build', 'data', 'variants'"):
        main(["compare", str(tmp_path / "my_other_study.py")])


@pytest.mark.thorough
def test_an_epoch_of_a_weighting_is_a_pass_over_the_training_data():
    """20 rows in batches of 12 are a pass of two updates."""
    dwa = weighting.DWA
    variants = {"by passes": {"weighting": dwa()}, "by updates": {"weighting": dwa(updates_per_epoch=2)}, "plain sum": {}}
    found = a_comparison(variants, build=build_without_chance, seeds=1, budget={"epochs": 3}, rates=0.1, batch_size=12)
    metrics = {line["variant"]: line["metrics"]["test"] for line in found.lines if line.get("run") == "final"}
    assert metrics["by passes"] == metrics["by updates"] != metrics["plain sum"]


def test_a_weighting_that_waits_for_an_end_that_never_comes_is_an_error():
    x, y = compared.examples(12)
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(4).repeat()
    data = {"train": endless, "validation": (x, y)}
    with pytest.raises(ValueError, match=r"`weighting` must not wait .* Received: DWA, .*`updates_per_epoch`"):
        a_comparison({"waits": {"weighting": "DWA"}}, data=data, build=build_without_chance, seeds=1, budget=2)


def test_the_results_of_the_tutorial_are_what_its_recorded_lines_say():
    page = ROOT / "docs" / "tutorials" / "sharing.md"
    found = comparison.read(page.with_suffix(".jsonl"))
    text = page.read_text(encoding="utf-8")
    for _, columns, rows in found.tables()[1:]:  # the page has the differences only
        assert len(rows) >= 6 and all(f"| {' | '.join(row)} |\n" in text for row in (columns, *rows))
    said = " ".join(text.replace("\n> ", "\n").split())
    for beginning in ("Sharing the encoder", "The validation data favour", "An update of 'EqualNorms'"):
        assert next(each for each in found.findings if each.startswith(beginning)) in said
    program: dict[str, object] = {}
    exec(re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE).group(1), program)
    settings = found.lines[0]["settings"]
    assert settings["rates"] == list(program["rates"]) and settings["batch_size"] == program["batch_size"]
    assert settings["updates"] == 20 * program["budget"]["epochs"] and len(found.seeds) == program["seeds"]
    assert {line["variant"] for line in found.lines if "is_fixed" in line} == set(program["variants"])
