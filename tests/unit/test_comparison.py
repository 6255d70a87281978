"""Comparisons of arms: what each run trains, what is written and read again, intervals, words, and the picture."""

from __future__ import annotations

import itertools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import multihead
from multihead import MultiHeadTrainer, comparison, plots
from multihead.comparison import _cost
from multihead.comparison._student import difference_of, relative_changes, student_quantile
from tests.helpers import compared
from tests.helpers.sources import ROOT

OPTIONS = {"options": compared.EAGER, "batch_size": 8, "verbose": 0}


def a_comparison(arms=None, data=None, **given):
    """A comparison of a few updates, without what takes time."""
    defaults = {"seeds": 2, "budget": 3, "rates": 0.01, "equal_cost": False, **OPTIONS}
    arms = {"plain sum": {}} if arms is None else arms
    build = given.pop("build", compared.build)
    return multihead.compare(build, compared.arrays() if data is None else data, arms, **{**defaults, **given})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison with a grid of rates and equal cost, and its file."""
    file = tmp_path_factory.mktemp("compared") / "lines.jsonl"
    arms = {"EqualNorms": compared.ARMS["EqualNorms"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cost, "ROUNDS", 2)
        return a_comparison(arms, rates=(1e-3, 3e-2), equal_cost=True, file=file), file


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
    seed, rate, updates = 3, 0.05, 7
    arms = {"plain sum": {}, "size 2": {"weights": {"size": 2.0}}}
    found = a_comparison(arms, build=build_without_chance, seeds=[seed], budget=updates, rates=rate)
    x, y = compared.arrays()["test"]
    for arm, weights in {
        "alone": {"kind": 1.0},
        "also alone": {"size": 1.0},
        "plain sum": {"kind": 1.0, "size": 0.5},
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
            assert found.values(arm.removeprefix("also "), head)[0] == pytest.approx(expected[head](predicted), rel=2e-4)


def test_a_comparison_has_all_runs_and_says_so(whole):
    found, file = whole
    assert found.arms == ("alone", "EqualNorms", "EqualNorms, equal cost") and found.seeds == (0, 1)
    assert found.metrics == {"kind": "kind_accuracy", "size": "size_loss"}
    assert found.directions == {"kind": "max", "size": "min"} and found.split == "test"
    runs = [line for line in found.lines if "run" in line]
    assert len([line for line in runs if line["run"] == "tune"]) == 4 * 2
    assert len([line for line in runs if line["run"] == "final"]) == 4 * 2
    starts = {(line["seed"], part, value) for line in runs for part, value in line["start"].items()}
    assert len(starts) == 3 * 3  # an encoder and two heads, at three seeds, whatever the arm
    ratio = found.costs["EqualNorms"]["update"]
    assert found.updates["EqualNorms, equal cost"] == max(round(3 / ratio), 1) and found.updates["EqualNorms"] == 3
    text = str(found)
    assert all(word in text for word in ("EqualNorms, equal cost", "size_loss ↓", "delta-m", "equal cost", "With two seeds"))
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["seeds"] == [0, 1]
    again = comparison.read(file)
    assert str(again) == text and again.to_dict() == found.to_dict()


def test_rates_are_the_best_of_the_grid_on_the_validation_data_of_the_tuning_seed(whole):
    found, _ = whole
    tuned = [line for line in found.lines if line.get("run") == "tune"]
    assert {line["seed"] for line in tuned} == {1000}
    for head, best in (("kind", max), ("size", min)):
        values = {line["rate"]: line["figures"]["validation"][found.metrics[head]] for line in tuned if line["head"] == head}
        assert values[found.rates[f"{head} alone"]] == best(values.values())
    alone = {head: [line for line in tuned if line["head"] == head] for head in found.heads}
    bases = {"kind": max(line["figures"]["validation"]["kind_accuracy"] for line in alone["kind"])}
    bases["size"] = min(line["figures"]["validation"]["size_loss"] for line in alone["size"])
    for arm, is_equal in (("EqualNorms", False), ("EqualNorms", True)):
        scores = {}
        for line in tuned:
            if line["arm"] == arm and line["at_equal_cost"] is is_equal:
                figures = line["figures"]["validation"]
                changes = (figures["kind_accuracy"] / bases["kind"] - 1, 1 - figures["size_loss"] / bases["size"])
                scores[line["rate"]] = sum(changes)
        assert found.rates[f"{arm}, equal cost" if is_equal else arm] == max(scores, key=scores.get)


def test_differences_are_scipys_paired_intervals(whole):
    found, _ = whole
    for arm, head, confidence in itertools.product(found.arms[1:], found.heads, (0.95, 0.5)):
        sign = 1 if head == "kind" else -1
        values, alone = (sign * found.values(each, head) for each in (arm, "alone"))
        ours = found.difference(arm, head, confidence=confidence)
        if np.ptp(values - alone) == 0:
            assert ours.mean == ours.low == ours.high
            continue
        interval = stats.ttest_rel(values, alone).confidence_interval(confidence)
        np.testing.assert_allclose((ours.low, ours.high), interval, rtol=1e-9, atol=1e-12)
    changes = [
        (found.values("EqualNorms", "kind") / found.values("alone", "kind") - 1),
        (1 - found.values("EqualNorms", "size") / found.values("alone", "size")),
    ]
    assert found.delta_m("EqualNorms").mean == pytest.approx(np.mean(changes), rel=1e-9)


@pytest.mark.mathematics
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9995])
def test_quantiles_of_student_are_scipys(probability):
    for degrees in (1, 2, 3, 4, 9, 10, 29, 200):
        assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-10)


@pytest.mark.mathematics
def test_intervals_leave_out_seeds_that_did_not_stay_finite_and_say_what_they_show():
    found = difference_of(np.array([1.0, np.nan, 3.0, 2.0]), 0.95)
    assert found.seeds == 3 and found.mean == 2
    np.testing.assert_allclose((found.low, found.high), stats.t.interval(0.95, 2, 2, stats.sem([1, 3, 2])))
    words = [difference_of(np.array(each), 0.95).verdict for each in ([1, 1.01], [-1, -1.01], [1.0, -1], [1.0], [np.nan])]
    assert words == ["better", "worse", "within noise", "unknown", "unknown"]
    changes = relative_changes(np.array([[1.1], [3.0], [1.0]]), np.array([[1.0], [4.0], [-2.0]]), np.array([1, -1, 1]))
    assert changes == pytest.approx([(0.1 + 0.25 + 1.5) / 3])
    assert np.isnan(relative_changes(np.ones((1, 1)), np.zeros((1, 1)), np.ones(1))).all()


class Stopped(RuntimeError):
    """As if the program was killed."""


def test_a_comparison_that_was_stopped_goes_on_and_ends_with_the_same_lines(tmp_path):
    arms = {"size 0.1": {"weights": {"size": 0.1}}}
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
    }
    calls["left"] = 1000
    expected = a_comparison(arms, **given)
    for_all, calls["all"] = calls["all"], 0
    file = tmp_path / "lines.jsonl"
    calls["left"] = 9
    with pytest.raises(Stopped):
        a_comparison(arms, **given, file=file)
    with open(file, "a", encoding="utf-8") as lines:
        lines.write('{"run": "final", "ar')
    calls["left"] = 1000
    found = a_comparison(arms, **given, file=file)
    assert compared.without_times(found.lines) == compared.without_times(expected.lines)
    assert calls["all"] == for_all + 1  # one of two parts was measured when it stopped
    before = calls["all"]
    assert str(a_comparison(arms, **given, file=file)) == str(found) and calls["all"] == before
    with pytest.raises(ValueError, match=r"`file` must belong to the same settings.*batch_size: 8 in the file, 4 now"):
        a_comparison(arms, **given, file=file, **{"batch_size": 4})
    with pytest.raises(ValueError, match=r"`arms\['size 0.1'\]` must be the same as in `file`.*another name"):
        a_comparison({"size 0.1": {"weights": {"size": 0.2}}}, **given, file=file)


@pytest.mark.thorough
def test_further_arms_and_seeds_join_what_is_in_the_file(tmp_path):
    file = tmp_path / "lines.jsonl"
    found = a_comparison(file=file)
    more = a_comparison({"plain sum": {}, "size 3": {"weights": {"size": 3.0}}}, file=file, seeds=3)
    assert more.seeds == (0, 1, 2) and len(more.arms) == 3
    np.testing.assert_array_equal(more.values("plain sum", "size")[:2], found.values("plain sum", "size"))
    assert a_comparison(file=file).arms == found.arms  # what was not asked for is not shown


def test_data_sets_that_a_function_makes_are_shuffled_alike_in_all_arms():
    found = a_comparison(data=compared.datasets, seeds=1, budget={"epochs": 2})
    assert found.updates["plain sum"] == 6
    orders = {(line["seed"], tuple(line["order"])) for line in found.lines if "run" in line}
    assert len(orders) == 1
    with pytest.raises(ValueError, match="`data` must give the same batches in the same order for a seed"):
        a_comparison(data=compared.datasets())


def test_a_start_that_differs_between_arms_is_an_error():
    scales = itertools.count(1)

    def build():
        trainer = compared.build()
        trainer.encoder.layers[0].kernel_initializer = keras.initializers.Constant(float(next(scales)))
        return trainer

    with pytest.raises(ValueError, match="`build` must make the same initial weights.*of encoder in the arm"):
        a_comparison(build=build)


@pytest.mark.filterwarnings("ignore:.*of the epoch's updates were skipped:RuntimeWarning")
def test_runs_that_do_not_stay_finite_are_reported():
    found = a_comparison(rates=(0.01, 1e30), seeds=1, budget=4)
    failed = [line for line in found.lines if line.get("rate") == 1e30 and line["arm"] == "plain sum"]
    assert failed[0]["figures"]["validation"]["size_loss"] is None and found.rates["plain sum"] == 0.01


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*of the epoch's updates were skipped:RuntimeWarning")
def test_a_grid_of_rates_with_which_nothing_stays_finite_is_an_error():
    with pytest.raises(ValueError, match="`rates` must have a learning rate with which 'size alone' stays finite"):
        a_comparison(rates=(1e30, 1e31), budget=4)


def test_arms_differ_by_weights_and_options_and_leave_the_objects_of_the_user_alone():
    balancer = multihead.balancing.EqualNorms()
    arms = {"one": {"balancer": balancer}, "by name": {"balancer": "EqualNorms", "balance_at": "parameters"}, "sum": {}}
    found = a_comparison(arms, seeds=1)
    assert len({tuple(found.values(arm, "size")) for arm in found.arms}) == 4
    trainer = compared.build()
    trainer.compile("sgd", balancer=balancer, run_eagerly=True)  # a balancer that another trainer had would be refused
    trainer.fit(*compared.arrays()["train"], verbose=0)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"arms": {}}, ValueError, "`arms` must be a dict of at least one arm"),
        ({"arms": {"alone": {}}}, ValueError, "must be a string other than 'alone'"),
        ({"arms": {"a": {"balancr": "EqualNorms"}}}, ValueError, "Did you mean `?'?balancer"),
        ({"arms": {"a": {"balancer": "EqualNorm"}}}, ValueError, "EqualNorms"),
        ({"arms": {"a": {"weights": {"sice": 1.0}}}}, ValueError, "Did you mean `?'?size"),
        ({"arms": {"a": {"weights": {"size": -1.0}}}}, ValueError, "numbers of at least 0"),
        ({"arms": {"a": {"accumulate_steps": 2}}}, ValueError, "is the same for all arms"),
        ({"arms": {"a": {"optimizer": "adam"}}}, ValueError, "`optimizer`"),
        ({"seeds": 0}, ValueError, "`seeds` must be"),
        ({"seeds": [1, 1]}, ValueError, "`seeds` must be"),
        ({"tuning_seed": 1}, ValueError, "`tuning_seed` must be a seed of its own"),
        ({"rates": (0.1, -1)}, ValueError, "`rates` must be a grid"),
        ({"budget": 0}, ValueError, "budget"),
        ({"budget": {"hours": 3}}, ValueError, "`budget` must be a number of updates"),
        ({"metrics": {"kind": "kind_acuracy", "size": "size_loss"}}, ValueError, "Did you mean `?'?kind_accuracy"),
        ({"metrics": {"kind": "kind_accuracy"}}, ValueError, "size"),
        ({"equal_cost": ["plan sum"]}, ValueError, "plain sum"),
        ({"optimizer": keras.optimizers.Adam()}, TypeError, "`optimizer` must be a class"),
        ({"build": compared.build()}, TypeError, "`build` must be a function"),
        ({"build": lambda: keras.Sequential([])}, TypeError, "`build` must return a `MultiHeadTrainer` with at least two"),
        ({"data": compared.examples(4)}, ValueError, "`data` must be a dict with 'train' and 'validation'"),
        (
            {"data": {"train": (np.ones((3, 2)), {"kimd": np.ones(3)}), "validation": None}},
            ValueError,
            "`compare` cannot use `data.'train'.`",
        ),
        ({"data": {"train": iter([]), "validation": None}}, TypeError, r"`data\['train'\]` must be"),
        ({"measure": lambda *_: {}}, ValueError, "`metrics` must name a figure"),
        ({"file": "/nowhere/at/all.jsonl"}, ValueError, "`file` must be a file in a folder that exists"),
        ({"processes": 2, "build": lambda: None}, ValueError, "must be importable with `processes` above 1"),
        ({"processes": 0}, ValueError, "processes"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(given, error, message):
    with pytest.raises(error, match=message):
        a_comparison(**given)


def synthetic(values, seeds=4, spread=0.01, directions=("max", "min", "min"), fixed=("w 0.3", "w 1", "w 3")):
    """A comparison with given means by arm and head."""
    rng = np.random.default_rng(0)
    heads = ["left", "right", "third"][: len(next(iter(values.values())))]
    metrics = {head: [f"{head}_score", way] for head, way in zip(heads, directions)}
    lines = [{"settings": {"heads": heads, "metrics": metrics, "split": "test", "rates": [0.01]}}]
    names = dict.fromkeys(arm.removesuffix(", equal cost") for arm in values if arm != "alone")
    lines += [{"arm": arm, "is_fixed": arm in fixed, "how": {}} for arm in names]
    lines += [{"cost": arm, "update_ratio": 0.5, "serve_ratio": 0.4} for arm in names if f"{arm}, equal cost" in values]
    for arm, seed in itertools.product(values, range(seeds)):
        figures = {f"{head}_score": value + spread * rng.normal() for head, value in zip(heads, values[arm])}
        for head in heads if arm == "alone" else [""]:
            line = {"run": "final", "arm": arm.removesuffix(", equal cost"), "head": head, "seed": seed, "rate": 0.01}
            line |= {"at_equal_cost": "," in arm, "updates": 200 if "," in arm else 100, "figures": {"test": figures}}
            lines.append(line)
    return comparison.Comparison(lines)


POINTS = {
    "alone": (0.9, 0.2),
    "w 0.3": (0.93, 0.33),
    "w 1": (0.91, 0.28),
    "w 3": (0.86, 0.25),
    "EqualNorms": (0.915, 0.27),
    "UPGrad": (0.88, 0.24),
    "EqualNorms, equal cost": (0.935, 0.18),
}


@pytest.mark.mathematics
def test_findings_say_what_sharing_costs_or_gives():
    found = synthetic(POINTS, spread=0.001)
    text = "\n".join(found.findings)
    assert "Sharing the encoder is worth it at equal cost" in text and "better with 'EqualNorms, equal cost'" in text
    assert "2 times as many" in text and "0.4 of the time" in text
    assert found.difference("UPGrad", "left").verdict == "worse" and found.difference("UPGrad", "right").verdict == "worse"
    worse = synthetic({name: value for name, value in POINTS.items() if "," not in name}, spread=0.001)
    assert "Sharing the encoder costs a head something in as many updates" in "\n".join(worse.findings)
    noisy = synthetic({"alone": (0.9, 0.2), "w 1": (0.9, 0.2)}, spread=0.1)
    assert "within the noise of seeds" in "\n".join(noisy.findings)
    once = synthetic({"alone": (0.9, 0.2), "w 1": (0.9, 0.2)}, seeds=1)
    assert "With one seed, no difference can be told from noise" in "\n".join(once.findings)


@pytest.mark.parametrize("heads", [2, 3])
def test_the_front_names_every_arm_and_nothing_overlaps(heads):
    values = {name: (*value, 0.5 + 0.1 * k)[:heads] for k, (name, value) in enumerate(POINTS.items())}
    figure = plots.front(synthetic(values))
    figure.draw_without_rendering()
    (axis,) = figure.axes
    texts = [text for text in axis.texts if text.get_text()]
    assert {text.get_text() for text in texts} >= set(values)
    boxes = [text.get_window_extent() for text in texts]
    assert [(i, j) for i in range(len(boxes)) for j in range(i) if boxes[i].overlaps(boxes[j])] == []
    if heads == 2:
        assert not axis.xaxis.get_inverted() and axis.yaxis.get_inverted()
        line = next(line for line in axis.lines if len(line.get_xdata()) == 3)
        np.testing.assert_allclose(sorted(line.get_xdata()), [0.86, 0.91, 0.93], atol=0.02)
        assert "left_score (higher is better" in axis.get_xlabel() and "right_score (lower is" in axis.get_ylabel()
    else:
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["left_score", "right_score", "third_score"]


def test_files_that_are_none_of_a_comparison_are_refused(tmp_path):
    path = tmp_path / "lines.jsonl"
    with pytest.raises(FileNotFoundError, match="`path` must be a file"):
        comparison.read(path)
    path.write_text('{"step": 1}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="`path` must be the file of a comparison"):
        plots.front(path)
    path.write_text('{"settings": {"heads": [], "metrics": {}, "split": "test", "rates": [1]}}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="`path` must have runs of all arms for at least one seed"):
        comparison.read(path)


@pytest.mark.programs
def test_two_processes_and_the_command_give_the_same_lines(tmp_path, capsys):
    from multihead.__main__ import main  # noqa: PLC0415 - the command

    config = tmp_path / "my_small_study.py"
    config.write_text(
        "from tests.helpers.compared import ARMS, EAGER, arrays, build\n"
        "data, arms, seeds, budget = arrays(), ARMS, 1, 2\n"
        "rates, equal_cost, options, batch_size = 0.01, False, EAGER, 8\n",
        encoding="utf-8",
    )
    main(["compare", str(config), "--processes", "2"])
    printed = capsys.readouterr().out
    assert "against each head alone" in printed and "100%" in printed
    assert (tmp_path / "my_small_study.png").read_bytes().startswith(b"\x89PNG")
    found = comparison.read(tmp_path / "my_small_study.jsonl")
    expected = a_comparison(compared.ARMS, seeds=1, budget=2)
    assert compared.without_times(found.lines) == compared.without_times(expected.lines)
    with pytest.raises(SystemExit, match="python -m multihead compare: `config` must be a file of Python"):
        main(["compare", str(tmp_path / "none.py")])
    config.with_name("my_other_study.py").write_text("seeds = 3\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="`config` must define"):
        main(["compare", str(tmp_path / "my_other_study.py")])


def test_data_sets_are_read_once_for_each_run_and_may_be_sparse_in_labels():
    x, y = compared.examples(12)
    y["kind"] = np.where(np.arange(12) % 2, y["kind"], -1)

    def build():
        trainer = MultiHeadTrainer(keras.layers.Dense(3))
        kind = keras.layers.Dense(3, activation="softmax")
        trainer.add_head("kind", kind, "sparse_categorical_crossentropy", ignore_label=-1)
        trainer.add_head("size", keras.layers.Dense(1), "mse")
        return trainer

    part = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    found = a_comparison(build=build, data={"train": part, "validation": part}, seeds=1, budget={"epochs": 2})
    assert found.split == "validation" and np.isfinite(found.values("alone", "kind")).all()
    assert "compared on the validation data" in str(found)


def test_the_results_of_the_tutorial_are_what_its_recorded_lines_say():
    page = ROOT / "docs" / "tutorials" / "sharing.md"
    found = comparison.read(page.with_suffix(".jsonl"))
    text = page.read_text(encoding="utf-8")
    for _, columns, rows in found.tables():
        assert len(rows) >= 6 and all(f"| {' | '.join(row)} |\n" in text for row in (columns, *rows))
    assert next(each for each in found.findings if each.startswith("Sharing the encoder")) in text
    program: dict[str, object] = {}
    exec(re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE).group(1), program)
    settings = found.lines[0]["settings"]
    assert settings["rates"] == list(program["rates"]) and settings["batch_size"] == program["batch_size"]
    assert settings["updates"] == 20 * program["budget"]["epochs"] and len(found.seeds) == program["seeds"]
    assert {line["arm"] for line in found.lines if "is_fixed" in line} == set(program["arms"])
