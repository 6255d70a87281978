"""The programs of the gallery: each is run, prints and draws what its page says, and its claim holds."""

from __future__ import annotations

import importlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import __main__ as listing
from examples import (
    clipping,
    large_batch_on_small_memory,
    mean_loss_or_mean_gradient,
    policy_gradient,
    toy_landscape,
    watching_a_run,
    watching_gradients,
)
from multihead import balancing, plots
from multihead.clipping import ByGlobalNorm
from tests.helpers.sources import ROOT
from tests.helpers.tiny import tensor_variable, values

pytestmark = pytest.mark.programs


def few(names):
    return lambda found: {name: found[name] for name in names}


SAID = {
    "clipping": ["embedding: sparse, high: kernel: none, high: bias: none.", "with Adam the head does not change at all"],
    "mean_loss_or_mean_gradient": ["fit, gradient_accumulation_steps", "sum, rate 0.5"],
    "policy_gradient": ["seed 2"],
    "watching_gradients": ["sigmoid: layer_1/kernel has the smallest gradient"],
    "images": ["plain sum", "what diagnose suggests", "best balancer: IMTLG", "Uncertainty"],
}
"""What a quick run of each program says, spaces aside."""
SHORTER = {
    ("clipping", "KINDS"): few(["by value", "by global norm"]),
    ("mean_loss_or_mean_gradient", "OPTIMIZERS"): few(["SGD"]),
}
"""Less of what a program repeats."""


@pytest.mark.parametrize("name", [*list(SAID)[:-1], pytest.param("images", marks=pytest.mark.thorough)])
def test_a_program_says_and_draws_what_its_page_says(name, tmp_path, capsys, monkeypatch, request):
    if name in ("images", "watching_gradients"):
        request.getfixturevalue("eager_updates" if name == "images" else "without_graphs")
    program = importlib.import_module(f"examples.{name}")
    for (of, attribute), change in SHORTER.items():
        if of == name:
            monkeypatch.setattr(program, attribute, change(getattr(program, attribute)))
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert [each for each in SAID[name] if each not in printed] == []
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("eager_updates")
def test_every_figure_of_a_run_is_drawn_from_its_ledger(tmp_path):
    assert watching_a_run.main(["--quick", "--output", str(tmp_path)]) == 0
    names = ["losses", "norms", "shares", "weights", "cosines", "model"]
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    run = plots.read(tmp_path / "run.jsonl")
    assert run.heads == ("topics", "hours", "urgent") and len(run.steps) == 8 and len(run.validation_steps) == 2


def test_every_program_is_listed_without_tensorflow():
    code = (
        "import runpy, sys\nsys.argv = ['examples']\n"
        "try: runpy.run_module('examples', run_name='__main__')\n"
        "except SystemExit as left: print(left.code, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert output.endswith("0 False False\n")
    runnable = {path.stem for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert set(listing.programs()) == (runnable - {"__main__"}) | {"seq2seq_price", "convergence_study"}
    assert all(f"\n{name}\n    " in output for name in listing.programs())


# Clipping


def flat(gradients):
    """All elements of gradients; those of a sparse one are put into their places here by hand."""
    parts = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            whole = np.zeros(gradient.dense_shape.numpy())
            np.add.at(whole, gradient.indices.numpy(), gradient.values.numpy())
            parts.append(whole.ravel())
        elif gradient is not None:
            parts.append(np.ravel(gradient).astype("float64"))
    return np.concatenate(parts)


def test_only_the_global_norm_keeps_the_direction_of_an_exploding_gradient():
    trainer = clipping.make_trainer(0, keras.optimizers.SGD(0.1))
    gradients = [gradient for gradient, _ in trainer.compute_gradients(clipping.make_batch(np.random.default_rng(0)))]
    length = np.linalg.norm(flat(gradients))
    assert length > 20  # the net has about 2,000 weights of size 0.2
    for name, kind in clipping.KINDS.items():
        clip = clipping.calibrated(kind, gradients, length / 50)
        assert np.linalg.norm(flat(clip(gradients))) == pytest.approx(length / 50, rel=1e-3), name
    found = clipping.directions(gradients, [length / 50, length * 0.99])
    assert found.pop("by global norm") == pytest.approx([1, 1])
    assert all(short < 0.9 < long for short, long in found.values())


def test_unclipped_it_explodes_and_clipped_it_does_not():
    plain, _ = clipping.train(None, 0, 25, 0.1)
    clipped, _ = clipping.train(ByGlobalNorm(1.0), 0, 25, 0.1)
    assert max(plain.norms) > 1e4 and plain.norms[0] == clipped.norms[0]
    assert max(clipped.norms) < 200 and max(clipped.applied) < 1 + 1e-5


# Mean loss or mean gradient


def first_gradient(batch):
    """At zero weights every probability is one half: `sum_i s_i (1/2 - y_i) (x_i, 1) / sum_i s_i`."""
    inputs = np.concatenate([batch.points, np.ones_like(batch.classes)], axis=1).astype("float64")
    return batch.weights @ ((0.5 - batch.classes) * inputs) / batch.weights.sum()


@pytest.mark.usefixtures("eager_updates")
@pytest.mark.parametrize("case", ["equal", "ragged", "weighted"])
def test_gradients_of_mini_batches_are_those_of_the_closed_form(case):
    program = mean_loss_or_mean_gradient
    batches = program.cases(np.random.default_rng(3), 5)[case]
    means, large = np.stack([first_gradient(batch) for batch in batches]), first_gradient(program.joined(batches))
    expected = {
        "gradient of the mean of mean losses": means.mean(axis=0),
        "mean of the mean gradients": means.mean(axis=0),
        "sum of the mean gradients": means.sum(axis=0),
        "GradientAccumulator with counts": large,
    }
    assert set(expected) == set(program.BY_HAND)
    for way, wanted in expected.items():
        found = np.concatenate([np.ravel(part) for part in program.BY_HAND[way](program.Perceptron(), batches)])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    error = np.linalg.norm(means.mean(axis=0) - large) / np.linalg.norm(large)
    assert error < 1e-6 if case == "equal" else error > 0.02


def test_a_summed_policy_gradient_explodes():
    program = mean_loss_or_mean_gradient
    batches = program.blobs(np.random.default_rng(0), [12] * 50, gap=1.0)
    mean, total = (program.play(way, batches, 100, 0.5, np.random.default_rng(0)) for way in ("mean", "sum"))
    assert total.norms[0] / mean.norms[0] >= 16  # sixteen episodes have at least as many steps
    assert total.returns[-10:].mean() < 50 < 100 < mean.returns[-10:].mean()


# Policy gradient


def test_mini_batches_make_the_update_of_all_steps():
    gymnasium = pytest.importorskip("gymnasium")
    environments = gymnasium.make_vec("CartPole-v1", num_envs=policy_gradient.ENVIRONMENTS)
    agent = policy_gradient.Agent(0, keras.optimizers.SGD(0.1))
    episodes = policy_gradient.play(agent, environments, np.random.default_rng(0))
    environments.close()
    weights = []
    for size in (len(episodes.actions), 37):
        agent = policy_gradient.Agent(1, keras.optimizers.Adam(0.01))
        agent.learn(episodes, size)
        assert int(agent.trainer.optimizer.iterations) == 1
        weights.append(np.concatenate([np.ravel(value) for value in values(agent.variables)]))
    assert len(episodes.actions) % 37  # the last one is shorter
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-4, atol=2e-6)


@pytest.mark.thorough
def test_the_pole_is_learnt():
    run = policy_gradient.train(1, 60)
    assert run.solved and np.mean(run.lengths[-100:]) >= 195 > 3 * np.mean(run.lengths[:100])
    assert run.most_steps > 4 * policy_gradient.MINI_BATCH  # an update does not fit in one batch


# Large batches


@pytest.mark.usefixtures("eager_updates")
def test_mini_batches_make_the_update_of_one_large_batch(tmp_path, capsys, monkeypatch):
    program, size = large_batch_on_small_memory, large_batch_on_small_memory.Size(3, 4)
    monkeypatch.setattr(program, "TIME", 5)
    outcomes = {case: program.train(case, size, 0)._replace(megabytes=50.0) for case in program.CASES}
    (batch,) = program.joined(program.stream(size, 0))
    trainer = program.make_trainer(0)
    variables = [tensor_variable(variable) for _, variable in trainer.compute_gradients(batch)]
    with tf.GradientTape() as tape:
        predictions = trainer(batch[0])
        kind = keras.losses.sparse_categorical_crossentropy(batch[1]["kind"], predictions["kind"])
        loss = tf.reduce_mean(kind) + tf.reduce_mean(tf.square(batch[1]["level"] - predictions["level"]))
    gradient = program.flat(tape.gradient(loss, variables)).astype("float64")
    expected = np.sort(np.concatenate([0.1 * gradient, 0.001 * gradient**2]))
    for case in program.CASES[:-1]:
        assert outcomes[case].updates == 1
        np.testing.assert_allclose(np.sort(outcomes[case].slots), expected, rtol=1e-3, atol=1e-7)
        weights, slots = program.distance(outcomes[case], outcomes[program.LARGE])
        assert weights < 1e-3 and slots < 1e-4, case
    assert outcomes[program.SEPARATE].updates == size.parts
    assert program.distance(outcomes[program.SEPARATE], outcomes[program.LARGE])[0] > 0.3
    monkeypatch.setattr(program, "in_fresh_process", lambda cases, size, seed: [outcomes[case] for case in cases])
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    assert "An update that runs the accumulating op again gives 2.4" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "large_batch_on_small_memory.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_a_stream_takes_less_memory():
    program = large_batch_on_small_memory
    # In one process: the large batch, which comes last, can only seem to need less.
    by_hand, large = program.in_fresh_process([program.BY_HAND, program.LARGE], program.Size(8, 64), 0)
    assert large.megabytes > 200  # six layers of 64 floats at 400 places in 512 examples are 300 MB
    assert by_hand.megabytes < large.megabytes / 2


# Watching gradients


def test_the_watch_shows_the_norms_of_a_tape_and_that_the_first_sigmoid_layers_starve(without_graphs):
    ratios = {}
    for activation in ("sigmoid", "tanh"):
        trainer = watching_gradients.make_trainer(activation, 0)
        batches = watching_gradients.make_data(np.random.default_rng(1), 96, batch_size=32)
        watch = watching_gradients.GradientWatch(batches)
        watch.set_model(trainer)
        watch.on_train_begin()
        watch.measure()
        inputs, targets = list(batches)[1]  # the first batch created the variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(targets["size"] - trainer(inputs)["size"]))
        kernels = [tensor_variable(each) for each in trainer.encoder.trainable_variables if len(each.shape) == 2]
        wanted = [np.linalg.norm(gradient) for gradient in tape.gradient(loss, kernels)]
        for head in ("kind", "size"):
            norms = [watch.norms(head)[name] for name in watching_gradients.kernels()]
            ratios[activation, head] = norms[0] / norms[-1]
        assert norms[: len(wanted)] == pytest.approx(wanted, rel=2e-4)
    for head in ("kind", "size"):
        assert ratios["sigmoid", head] < 1e-3 and 0.1 < ratios["tanh", head] < 10


# The landscape of the papers


def losses_by_numpy(x, y, scale):
    """Written for one point at a time, half by half."""
    if y > 0:
        factor = (1 - np.exp(-y)) / (1 + np.exp(-y))
        first = np.log(max(abs(-x / 2 - 3.5 + np.tanh(y)), 5e-6)) + 6
        second = np.log(max(abs(-x / 2 + 3.5 - np.tanh(y)), 5e-6)) + 6
    else:
        factor = (1 - np.exp(y)) / (1 + np.exp(y))
        first = (x - 7) ** 2 / 10 + (y + 8) ** 2 / 100 - 20
        second = (x + 7) ** 2 / 10 + (y + 8) ** 2 / 100 - 20
    return np.array([scale * factor * first, factor * second])


def test_the_landscape_is_that_of_the_papers_for_every_balancer():
    points = np.random.default_rng(0).uniform(-10, 10, size=(200, 2))
    expected = [losses_by_numpy(x, y, 0.1) for x, y in points]
    np.testing.assert_allclose(toy_landscape.losses(tf.constant(points), 0.1), expected, rtol=1e-10)
    classes = [each for each in vars(balancing).values() if isinstance(each, type) and issubclass(each, balancing.Balancer)]
    assert set(toy_landscape.balancers()) == {each.__name__ for each in classes} - {"Balancer"}


def ends(balancer, **options):
    return np.stack([path[-1] for path in toy_landscape.follow(balancer, **options)])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("name", "steps", "rate"),
    [("NashMTL", 5000, 0.009), ("MGDA", 20000, 0.003), ("IMTLG", 20000, 0.003)],  # NashMTL's steps take the longest
)
def test_reaches_the_front_from_everywhere(name, steps, rate):
    reached = toy_landscape.distance_to_front(ends(balancing.get(name), steps=steps, learning_rate=rate))
    assert (reached < toy_landscape.TOLERANCE).all(), reached


def test_plain_sum_gets_stuck_from_the_upper_right():
    reached = toy_landscape.distance_to_front(ends(balancing.Sum(), steps=25000))
    assert reached[2] > 5  # in the narrow valley of the second loss
    assert (reached[3:] < toy_landscape.TOLERANCE).all()  # and what starts below gets there


@pytest.mark.thorough
def test_cagrad_reaches_the_lowest_mean_where_the_sum_is_stuck():
    options = {"steps": 35000, "scale": 1.0, "starts": [(-8.5, 7.5)]}
    assert toy_landscape.distance_to_front(ends(balancing.Sum(), **options))[0] > 5
    (end,) = ends(balancing.CAGrad(), **options)
    front = toy_landscape.pareto_front()
    lowest = front[np.argmin([losses_by_numpy(*point, 1.0).mean() for point in front])]
    np.testing.assert_allclose(end, lowest, atol=0.05)


def test_the_landscape_prints_a_table_and_draws_and_says_what_it_cannot_use(tmp_path, capsys):
    figure = tmp_path / "deep" / "landscape.png"
    assert toy_landscape.main(["--steps", "40", "--balancers", "Sum", "EqualNorms", "--output", str(figure)]) == 0
    printed = capsys.readouterr().out
    assert "EqualNorms" in printed and "0/5" in printed and figure.read_bytes().startswith(b"\x89PNG")
    assert toy_landscape.main(["--balancers", "Sums", "--output", str(tmp_path / "a.png")]) == 2
    assert "--balancers must be among Sum, AlignedMTL" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        toy_landscape.main(["--learning-rate", "nan"])
    assert "must be a finite number above 0. Received: 'nan'" in capsys.readouterr().err
