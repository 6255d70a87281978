"""The programs of the gallery: each is run, prints and draws what its page says, and its claim holds."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

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
from tests.helpers.letters import small_letters
from tests.helpers.sources import ROOT
from tests.helpers.tiny import tensor_variable, values

pytestmark = pytest.mark.programs


def few(names):
    return lambda found: {name: found[name] for name in names}


SAID = {
    "clipping": ["embedding: sparse, high: kernel: none, high: bias: none.", "with Adam the head does not change at all"],
    "mean_loss_or_mean_gradient": ["fit, accumulated", "sum, rate 0.5"],
    "policy_gradient": ["seed 2"],
    "watching_gradients": ["sigmoid: layer 1 has the smallest gradient"],
    "toy_landscape": ["Sum", "EqualNorms", "0/5"],
    "images": ["plain sum", "what diagnose suggests", "best balancer: IMTLG", "Uncertainty"],
}
"""What a quick run of each program says, spaces aside."""
SHORTER = {
    ("clipping", "KINDS"): few(["by value", "by global norm"]),
}
"""Less of what a program repeats."""


@pytest.fixture
def small(monkeypatch):
    """The texts of saved figures that are too small for a phone."""
    found, save = [], Figure.savefig

    def looked_at(figure, *given, **options):
        found.extend(small_letters(figure))
        return save(figure, *given, **options)

    monkeypatch.setattr(Figure, "savefig", looked_at)
    return found


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", SAID)
def test_a_program_says_and_draws_what_its_page_says(name, tmp_path, capsys, monkeypatch, request, small):
    if name in ("images", "watching_gradients"):
        request.getfixturevalue("eager_updates")
    program = importlib.import_module(f"examples.{name}")
    for (of, attribute), change in SHORTER.items():
        if of == name:
            monkeypatch.setattr(program, attribute, change(getattr(program, attribute)))
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert [each for each in SAID[name] if each not in printed] == []
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") and small == []


@pytest.mark.usefixtures("eager_updates")
def test_every_figure_of_a_run_is_drawn_from_its_ledger(tmp_path, small):
    assert watching_a_run.main(["--quick", "--output", str(tmp_path)]) == 0
    names = ["losses", "norms", "shares", "weights", "cosines", "model"]
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names) and small == []
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
    assert set(listing.programs()) == (runnable - {"__main__"}) | {"ranking", "seq2seq_price"}
    assert all(f"\n{name}\n    " in output for name in listing.programs())


@pytest.mark.parametrize("name", listing.programs())
def test_every_program_says_what_it_does_and_trains_nothing_when_asked_for_help(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    program = ROOT / "examples" / name / "__main__.py"
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(program if program.exists() else program.parent.with_suffix(".py")), run_name="__main__")
    printed = capsys.readouterr().out
    assert left.value.code == 0 and printed.startswith(f"usage: python -m examples.{name} [-h]")
    undescribed = r"^  -\S+(?: \S+)*\n(?! {10})"  # a description follows after two spaces, or in the next line
    assert re.findall(undescribed, printed, re.MULTILINE) == []


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
        clipped = [clipping.calibrated(kind, gradients, target)(gradients) for target in (length / 50, length * 0.99)]
        assert np.linalg.norm(flat(clipped[0])) == pytest.approx(length / 50, rel=1e-3), name
        short, long = (clipping.cosine(gradients, each) for each in clipped)
        assert short == pytest.approx(1) if name == "by global norm" else short < 0.9 < long, name


def test_unclipped_it_explodes_and_clipped_it_does_not():
    plain, clipped = clipping.train(None, 0, 25), clipping.train(ByGlobalNorm(1.0), 0, 25)
    assert max(plain.norms) > 1e4 and plain.norms[0] == clipped.norms[0]
    assert max(clipped.norms) < 200 and all(clipped.made)


# Mean loss or mean gradient


def first_gradient(points, classes, weights):
    """At zero weights every probability is one half: `sum_i s_i (1/2 - y_i) (x_i, 1) / sum_i s_i`."""
    inputs = np.concatenate([points, np.ones_like(classes)], axis=1).astype("float64")
    return weights @ ((0.5 - classes) * inputs) / weights.sum()


@pytest.mark.usefixtures("eager_updates")
@pytest.mark.parametrize("case", ["equal", "ragged", "weighted"])
def test_weights_after_one_update_are_those_of_the_closed_form(case):
    program = mean_loss_or_mean_gradient
    batches = program.cases(np.random.default_rng(3), 5)[case]
    means, large = np.stack([first_gradient(*batch) for batch in batches]), first_gradient(*program.joined(batches))
    expected = {
        "gradient of mean of mean losses": means.mean(axis=0),
        "mean of the mean gradients": means.mean(axis=0),
        "sum of the mean gradients": means.sum(axis=0),
        "GradientAccumulator with counts": large,
    }
    assert set(expected) == set(program.BY_HAND)
    found = {way: program.train_by_hand(gather, batches, 1) for way, gather in program.BY_HAND.items()}
    found["library"], expected["library"] = program.train_with_library(batches, 1), large
    for way, wanted in expected.items():
        np.testing.assert_allclose(found[way], -program.RATE * wanted, rtol=1e-4, atol=1e-6)
    error = np.linalg.norm(means.mean(axis=0) - large) / np.linalg.norm(large)
    assert error < 1e-6 if case == "equal" else error > 0.02


def test_a_summed_policy_gradient_explodes():
    program = mean_loss_or_mean_gradient
    batches = program.blobs(np.random.default_rng(0), [12] * 50, gap=1.0)
    mean, total = (program.play(way, batches, 100, 0.5, np.random.default_rng(0)) for way in ("mean", "sum"))
    assert total[0, 1] / mean[0, 1] >= 16  # sixteen episodes have at least as many steps
    assert total[-10:, 0].mean() < 50 < 100 < mean[-10:, 0].mean()


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
    monkeypatch.setattr(program, "in_fresh_processes", lambda size, seed, advance: outcomes)
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    assert "is then 2.4; the accumulator's is 2." in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "large_batch_on_small_memory.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_a_stream_takes_less_memory():
    program = large_batch_on_small_memory
    found = program.in_fresh_processes(program.Size(8, 64), 0, lambda: None)
    assert found[program.LARGE].megabytes > 200  # six layers of 64 floats at 400 places in 512 examples are 300 MB
    assert found[program.BY_HAND].megabytes < found[program.LARGE].megabytes / 2


# Watching gradients


@pytest.mark.usefixtures("eager_updates")
def test_norms_by_layer_are_those_of_a_tape_and_the_first_sigmoid_layers_starve():
    program, ratios = watching_gradients, {}
    for activation in program.TITLES:
        norms, _ = program.train(activation, 0, 64, 1)
        assert norms.shape == (2, 2, program.LAYERS)
        trainer, (inputs, targets) = program.make_trainer(activation, 0), program.make_data(np.random.default_rng(0), 64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(targets["size"] - trainer(inputs)["size"]))
        variables = [tensor_variable(each) for each in trainer.encoder.trainable_variables]
        squares = [float(tf.reduce_sum(gradient**2)) for gradient in tape.gradient(loss, variables)]
        wanted = np.sqrt(np.reshape(squares, (program.LAYERS, 2)).sum(axis=1))  # kernel and bias
        np.testing.assert_allclose(norms[0, 1], wanted, rtol=2e-4)
        ratios[activation] = norms[0, :, 0] / norms[0, :, -1]
    assert (ratios["sigmoid"] < 1e-3).all() and (0.1 < ratios["tanh"]).all() and (ratios["tanh"] < 10).all()


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
    np.testing.assert_allclose(toy_landscape.losses(tf.constant(points)), expected, rtol=1e-10)
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
    reached = toy_landscape.distance_to_front(ends(balancing.get(name), steps=steps, rate=rate))
    assert (reached < toy_landscape.TOLERANCE).all(), reached


def test_plain_sum_gets_stuck_from_the_upper_right():
    reached = toy_landscape.distance_to_front(ends(balancing.Sum(), steps=25000))
    assert reached[2] > 5  # in the narrow valley of the second loss
    assert (reached[3:] < toy_landscape.TOLERANCE).all()  # and what starts below gets there


@pytest.mark.thorough
def test_cagrad_reaches_the_lowest_mean_where_the_sum_is_stuck(monkeypatch):
    monkeypatch.setattr(toy_landscape, "SCALE", 1.0)
    options = {"steps": 35000, "starts": [(-8.5, 7.5)]}
    assert toy_landscape.distance_to_front(ends(balancing.Sum(), **options))[0] > 5
    (end,) = ends(balancing.CAGrad(), **options)
    front = toy_landscape.pareto_front()
    lowest = front[np.argmin([losses_by_numpy(*point, 1.0).mean() for point in front])]
    np.testing.assert_allclose(end, lowest, atol=0.05)
