"""The study: its variants run and repeat, its measurements are those of NumPy, and a summed price loss starves the decoder."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples._command_line import InputError
from examples.convergence_study import command, report, study, training
from examples.convergence_study.variants import RATES, TUNED, ByPart, all_variants, references
from examples.seq2seq_price.data import load_data
from multihead import clipping

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[2]
ROWS = 32
SMALL = ["--seeds", "1", "--updates", "4", "--measurements", "2", "--orders", "200", "--batch-size", "16"]
SMALL += ["--units", "8", "--embedding", "4"]


def parse(*arguments):
    return command.parse([*SMALL, *arguments])


@pytest.fixture(scope="module")
def small():
    keras.utils.set_random_seed(0)
    options = parse("--variants", "sum", "--units", "16", "--orders", "320", "--batch-size", str(ROWS))
    return study.Study(options, load_data(options))


@pytest.fixture(scope="module")
def by_hand(small):
    """What was tried first, ready to run."""
    return training.HandWrittenRun(small.network, all_variants("adam")["two_optimizers"], small._batches[0])


def test_the_options_name_every_variant():
    assert list(command.VARIANTS) == list(all_variants("adam"))
    assert set(command.QUICK_VARIANTS) < set(command.VARIANTS)
    variants = study.chosen_variants(parse("--variants", "sum", "unreduced_sgd"))
    names = ["decoder_alone", "price_alone", "decoder_alone_sgd", "price_alone_sgd", "sum", "unreduced_sgd"]
    assert [variant.name for variant in variants] == names
    assert [variant.optimizer for variant in variants] == ["adam", "adam", "sgd", "sgd", "adam", "sgd"]


def test_the_network_measures_what_numpy_does(small, without_graphs):
    network = small.network
    network.set(network.draw(3))
    figures = network.evaluate(exact=True)
    sums, hits, labels = np.zeros(4), 0, 0
    for ids, targets in network._dev:
        hidden = network.encoder(ids)
        logits = network.reply(hidden, targets["reply"]).numpy().astype("float64")
        logits -= logits.max(axis=-1, keepdims=True)
        of_tokens = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(
            logits, targets["reply"].numpy()[..., np.newaxis], axis=-1
        ).squeeze(-1)
        chosen = network.price(hidden).numpy()
        price = targets["price"].numpy()
        used = targets["reply"].numpy() != 0
        sums += [of_tokens[used].sum(), used.sum(), -np.log(chosen[np.arange(len(price)), price]).sum(), len(price)]
        hits, labels = hits + (chosen.argmax(axis=1) == price).sum(), labels + len(price)
    assert labels == 32
    assert figures["reply_loss"] == pytest.approx(sums[0] / sums[1], rel=1e-4)
    assert figures["price_loss"] == pytest.approx(sums[2] / sums[3], rel=1e-4)
    assert figures["price_accuracy"] == pytest.approx(hits / labels)
    assert 0 <= figures["reply_exact"] <= 1


def test_the_norms_are_those_of_finite_differences(small):
    network = small.network
    network.set(network.draw(4))
    figures = network.evaluate(exact=False)
    ids, targets = network._dev[0]
    hidden = network.encoder(ids)
    reply, price = tf.cast(targets["reply"], tf.int32), targets["price"]

    def losses(step):
        reply_sum, tokens, price_sum, labels = network.head_losses(hidden + step, reply, price)
        return np.array([reply_sum / tokens, price_sum / labels], "float64")

    with tf.GradientTape() as tape:
        tape.watch(hidden)
        reply_sum, tokens, _, _ = network.head_losses(hidden, reply, price)
    direction = tape.gradient(reply_sum, hidden) / tokens
    unit = direction / tf.norm(direction)
    slopes = (losses(0.02 * unit) - losses(-0.02 * unit)) / 0.04
    # Along the reply's own gradient its slope is the norm, and the price's is its norm times the cosine.
    assert slopes[0] == pytest.approx(figures["reply_norm"], rel=0.02)
    assert slopes[1] == pytest.approx(figures["price_norm"] * figures["cosine"], rel=0.05, abs=2e-4)


@pytest.mark.thorough
def test_a_run_repeats(small, by_hand):
    variant = all_variants("adam")["while_conflicting"]
    starts = []
    for runner in (by_hand, training.make_run(small.network, variant, small._batches[0])):
        curves = [runner.run(0, small._batches[0], 1, 2, lambda: None) for _ in range(2)]
        for first, second in zip(*curves):
            assert {**first, "seconds": 0} == {**second, "seconds": 0}
        assert [point["examples"] for point in curves[0]] == [0, ROWS, 2 * ROWS]
        assert curves[0][-1]["reply_loss"] != curves[0][0]["reply_loss"]
        starts.append(curves[0][0])
    assert starts[0]["reply_loss"] > starts[1]["reply_loss"]  # from larger weights
    small.network.set(small.network.draw(0))
    assert small.network.evaluate(exact=False)["reply_loss"] == starts[1]["reply_loss"]


def test_the_hand_written_update_is_adadelta_twice(small, by_hand):
    network = small.network
    ids, targets = next(iter(small._batches[0]))
    for variable, value in zip(by_hand._state, by_hand._start):
        variable.assign(value)
    network.set(network.draw(0))
    kernel = network.price.trainable_variables[0]
    before = tf.convert_to_tensor(kernel).numpy()
    with tf.GradientTape() as tape:
        _, _, _, price_sum, labels = network.losses(ids, targets["reply"], targets["price"])
    gradient = tape.gradient(price_sum, kernel).numpy()
    assert float(labels) == ROWS
    by_hand._step(ids, targets["reply"], targets["price"])
    # Adadelta's first step, with rho 0.95 and epsilon 1e-7: nothing of the gradient's size is left but its sign.
    step = np.sqrt(1e-7) / np.sqrt(0.05 * gradient**2 + 1e-7) * gradient
    np.testing.assert_allclose(tf.convert_to_tensor(kernel).numpy(), before - step, rtol=1e-4, atol=1e-6)


def test_an_update_is_that_of_fit(small, without_graphs):
    network, variant = small.network, all_variants("adam")["equal_norms"]
    batches = small._batches[0][:2]
    curve = training.LibraryRun(network, variant, batches).run(0, batches, 2, 1, lambda: None)
    trainer = training.make_trainer(network, variant, ROWS)
    network.set(network.draw(0))
    shapes = (tf.TensorSpec([ROWS, None], tf.int32), {"reply": tf.TensorSpec([ROWS, None], tf.int32)})
    shapes[1]["price"] = tf.TensorSpec([ROWS], tf.int32)
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=shapes)
    data = data.apply(tf.data.experimental.assert_cardinality(len(batches)))
    trainer.fit(data, verbose=0, shuffle=False)
    fitted = network.evaluate(exact=True)
    assert len(batches) == 2 and fitted.keys() <= curve[-1].keys()
    for figure, value in fitted.items():
        assert value == pytest.approx(curve[-1][figure], rel=1e-4, abs=1e-4), figure


def test_batches_are_whole_repeat_and_hold_each_row_once_in_an_epoch(small):
    rows = small._train._replace(labels=np.arange(len(small._train.texts)))
    epoch = len(rows.texts) // ROWS
    made = [
        training.make_batches(rows, small.network.vectorizers, batch_size=ROWS, updates=2 * epoch, seed=seed)
        for seed in (3, 3, 4)
    ]
    numbers = [[targets["price"].numpy() for _, targets in batches] for batches in made]
    np.testing.assert_array_equal(numbers[0], numbers[1])
    assert not np.array_equal(numbers[0], numbers[2])
    for first in (0, epoch):
        seen = np.concatenate(numbers[0][first : first + epoch])
        assert len(seen) == epoch * ROWS and len(np.unique(seen)) == len(seen)
    assert not np.array_equal(numbers[0][:epoch], numbers[0][epoch:])
    ids, targets = made[0][0]
    source, reply = small.network.vectorizers(
        *([column[number] for number in numbers[0][0]] for column in (rows.texts, rows.targets))
    )
    np.testing.assert_array_equal(ids, source.to_tensor())
    np.testing.assert_array_equal(targets["reply"], reply.to_tensor())
    by_chance = np.random.default_rng(0).permutation(len(rows.texts))[: epoch * ROWS].reshape(epoch, ROWS)
    lengths = np.array([len(target.split()) for target in rows.targets])
    assert sum(lengths[n].max() for n in numbers[0][:epoch]) < 0.95 * sum(lengths[n].max() for n in by_chance)


def test_parts_are_clipped_apart():
    gradients = [tf.constant([3.0, 4.0]), None, tf.constant([0.3]), tf.constant([0.0, 30.0]), tf.constant([40.0])]
    clipped = ByPart(1.0, [2, 1, 2])(gradients)
    assert clipped[1] is None
    found = np.concatenate([value for value in clipped if value is not None])
    np.testing.assert_allclose(found, [0.6, 0.8, 0.3, 0.0, 0.6, 0.8], rtol=1e-6)
    together = clipping.ByGlobalNorm(1.0)(gradients)
    assert np.linalg.norm(np.concatenate([g for g in together if g is not None])) == pytest.approx(1.0)
    assert float(together[2][0]) < 0.01 < float(clipped[2][0])


@pytest.mark.thorough
def test_summed_over_the_batch_the_price_loss_leaves_the_decoder_behind(small):
    network, rows = small.network, small._train
    batches = training.make_batches(rows, network.vectorizers, batch_size=ROWS, updates=60, seed=0)
    variants = {name: all_variants("sgd")[name] for name in ("unreduced_sgd", "repaired_sgd")}
    variants["alone"] = references("sgd", "sgd")[0]
    losses = {}
    for name, variant in variants.items():
        curve = training.LibraryRun(network, variant, batches).run(0, batches, 60, 1, lambda: None)
        losses[name] = training.final(curve, "reply_loss")
    assert losses["alone"] < 2.8, losses  # it learns: it starts from 3.3
    assert losses["unreduced_sgd"] > 1.05 * max(losses["alone"], losses["repaired_sgd"]), losses


def test_the_weight_with_the_smallest_product_of_losses_is_chosen(small, monkeypatch):
    products, used = {0.1: 3.0, 0.3: 2.0, 1.0: 4.0, 3.0: 1.0, 10.0: 5.0}, []

    class Runner:
        def __init__(self, network, variant, batches):
            self.weight = variant.price_weight

        def run(self, seed, batches, every, epochs, advance):
            used.append((self.weight, seed))
            return [{"reply_loss": 0.5, "price_loss": 2 * products[self.weight]}]

    monkeypatch.setattr(study, "LibraryRun", Runner)
    monkeypatch.setattr(study, "make_run", Runner)
    result = small.run(all_variants("adam")[TUNED], lambda: None)
    assert result.variant.price_weight == 3.0 and result.trials == {f"{w:g}": product for w, product in products.items()}
    assert used == [*((weight, study.TUNING_SEED) for weight in products), (3.0, 0)]


def test_updates_until_are_interpolated():
    curve = [{"updates": 10.0 * place, "loss": value} for place, value in enumerate((4.0, 3.0, 1.0, 2.0))]
    assert training.updates_until(curve, "loss", 2.0, falling=True) == pytest.approx(15)
    assert training.updates_until(curve, "loss", 3.0, falling=True) == pytest.approx(10)
    assert training.updates_until(curve, "loss", 0.5, falling=True) is None
    assert training.updates_until(curve, "loss", 4.0, falling=False) == 0
    rising = [{**point, "loss": -point["loss"]} for point in curve]
    assert training.updates_until(rising, "loss", -2.0, falling=False) == pytest.approx(15)


def made_result(variant, reply, price):
    curves = []
    for reply_values, price_values in zip(reply, price):
        points = itertools.count()
        curves.append(
            [
                {"updates": 10.0 * n, "seconds": n, "reply_loss": a, "price_loss": 1 - b, "price_accuracy": b,
                 "reply_exact": 0.0, "reply_norm": 1.0, "price_norm": 2.0, "cosine": -0.5}
                for n, a, b in zip(points, reply_values, price_values)
            ]
        )  # fmt: skip
    return study.Result(variant, curves)


def test_the_claim_is_judged_by_the_figures():
    alone = references("adam", "adam")
    variants = {name: all_variants("adam")[name] for name in ("sum", "equal_norms", "weight_16", "unreduced_adam")}
    falls, late, never = (4.0, 2.0, 1.0), (4.0, 3.0, 1.0), (4.0, 3.0, 2.0)
    results = {
        "decoder_alone": made_result(alone[0], [falls, falls], [(0, 0, 0)] * 2),
        "price_alone": made_result(alone[1], [(0, 0, 0)] * 2, [(0.1, 0.5, 0.7), (0.1, 0.5, 0.8)]),
        "sum": made_result(variants["sum"], [late, late], [(0.1, 0.5, 0.9)] * 2),
        "equal_norms": made_result(variants["equal_norms"], [falls, falls], [(0.1, 0.5, 0.76)] * 2),
        "weight_16": made_result(variants["weight_16"], [falls, falls], [(0.1, 0.5, 0.8)] * 2),
        "unreduced_adam": made_result(variants["unreduced_adam"], [falls, never], [(0.1, 0.5, 0.8)] * 2),
    }
    study.summarize(results, "adam")
    assert results["equal_norms"].summary["reply_slowness"] == pytest.approx(1)
    assert results["price_alone"].summary["price_accuracy"] == pytest.approx((0.75, 0.05))
    assert results["sum"].summary["reply_updates"] == pytest.approx(10 + 10 * 1.95 / 2)
    assert results["sum"].summary["reply_slowness"] == pytest.approx(19.75 / 19.5)
    assert results["unreduced_adam"].summary["reply_reached"] == 1
    said = study.conclude(results, "adam")
    assert said[-2] == ("Both heads as good as alone, without a weight: sum, equal_norms; with a weight: weight_16.")
    assert said[-1] == "At least as good as the plain sum for both heads: no balancer."
    assert said[0].startswith("unreduced_adam: the decoder ends at a loss of 1.500 (alone 1.000)")
    results["equal_norms"].curves[1][-1]["price_accuracy"] = 0.7
    study.summarize(results, "adam")
    assert not study.keeps_both(results["equal_norms"], results, "adam")
    assert not study.keeps_both(results["unreduced_adam"], results, "adam")
    cells = {row[0]: row[1:] for row in report.speed_rows(results)}
    assert cells["sum"] == ["20", "1.01", "1.00", "15", "1.0e+00, 2.0e+00", "-0.50"]
    assert cells["unreduced_adam"][:3] == ["20 (1 of 2)", "1.00", "0.75"]
    assert cells["price_alone"] == ["", "", "", "18", "", ""]
    assert report.final_rows(results)[0] == ["decoder_alone", "1.000 ± 0.000", "0.000 ± 0.000", "", "2"]


@pytest.mark.thorough
def test_the_program(tmp_path, capsys, without_graphs):
    assert command.main([*SMALL, "--variants", "sum", "--output", str(tmp_path / "a")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Both heads as good as alone" in told and "The representation gradient of 'price' is" in told
    figures = json.loads((tmp_path / "a" / "figures.json").read_text(encoding="utf-8"))
    assert list(figures["variants"]) == ["decoder_alone", "price_alone", "sum"]
    curve = figures["variants"]["sum"]["curves"][0]
    assert [(point["updates"], point["examples"]) for point in curve] == [(0, 0), (2, 32), (4, 64)]
    assert 0 == curve[0]["seconds"] < curve[1]["seconds"] < curve[2]["seconds"]
    assert figures["variants"]["sum"]["summary"]["reply_loss"] == [curve[-1]["reply_loss"], 0]
    finding = figures["findings"][0]
    assert finding.startswith("The representation gradient of 'price' is ") and figures["options"]["seeds"] == 1
    assert (
        "summed over the batch" in finding
        and "`NormFloor`" in finding
        and "leaves almost nothing of the gradient of 'reply'" in finding
    )
    for axis in ("examples", "seconds"):
        assert (tmp_path / "a" / f"by_{axis}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a" / "pace.png").read_bytes().startswith(b"\x89PNG")


def test_files_are_read(tmp_path):
    rows = load_data(parse()).splits["train"]
    for name in ("train", "dev"):
        lines = [f'"{t}","{r}",{"low" if label < 4 else "high"}' for t, r, label in zip(*rows[:3])]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,order,price", *lines]), encoding="utf-8")
    files = [f"--{name}={tmp_path / name}.csv" for name in ("train", "dev")]
    options = parse(*files, "--target", "order", "--label", "price", "--variants", "sum")
    made = study.Study(options, load_data(options))
    assert made.network.price(tf.zeros([1, 8])).shape == (1, 2)


def test_what_cannot_be_used_is_said_in_one_line(capsys):
    for arguments, words in (
        (["--train", "a.csv"], "--train and --dev go together"),
        (["--bands", "3"], "--bands requires --train"),
        (["--variants", "summ"], "invalid choice: 'summ'"),
        (["--updates", "0"], "must be a whole number of at least 1. Received: '0'."),
    ):
        with pytest.raises(SystemExit) as left:
            command.parse(arguments)
        assert left.value.code == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1 and told.startswith("examples.convergence_study: error: ")
    assert command.main([*SMALL, "--batch-size", "64", "--output", "/dev/null/a"]) == 2
    assert "`--output` must be a writable folder" in capsys.readouterr().err
    with pytest.raises(
        InputError, match="`--batch-size` must be at most an eighth of the number of training rows. Received: 64,"
    ):
        options = parse("--batch-size", "64")
        study.Study(options, load_data(options))


def test_help_needs_no_tensorflow():
    code = (
        "import sys\nfrom examples.convergence_study.command import build_parser\n"
        "text = build_parser().format_help()\nprint('tensorflow' in sys.modules, 'two_optimizers' in text)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "True"]


def test_every_optimizer_has_a_rate():
    for name, rate in RATES.items():
        optimizer = training.make_optimizer(references(name, "adam")[0])
        assert float(optimizer.learning_rate) == pytest.approx(rate)
        assert type(optimizer).__name__.lower() == name
    assert isinstance(parse(), argparse.Namespace)
