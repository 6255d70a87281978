"""`trainer.summary()`: what was configured."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, balancing, clipping, schedules


def configured():
    trainer = MultiHeadTrainer(keras.layers.Dense(4, name="shared"))
    trainer.add_head("price", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy", weight=0.5)
    trainer.add_head("size", keras.layers.Dense(1), "mse", weight=lambda step: 2.0, learning_rate_multiplier=0.0)
    trainer.compile(
        keras.optimizers.Adam(0.002),
        balancer=balancing.CAGrad(c=0.3),
        balance_every=5,
        head_schedule=schedules.Alternate({"price": 1, "size": 2}),
        clip=clipping.ByGlobalNorm(5.0),
        gradient_accumulation_steps=4,
        micro_batches=2,
        encoder_learning_rate_multiplier=0.1,
    )
    return trainer


def cells(text):
    """The cells of all tables, by their first cell."""
    lines = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if line}


def test_it_shows_modules_losses_weights_and_what_an_update_is_made_of(capsys):
    trainer = configured()
    trainer.summary()
    assert "not built yet" in capsys.readouterr().out
    trainer.compute_gradients([(np.ones([2, 3], np.float32), {"price": np.array([0, 1]), "size": np.ones([2, 1])})])
    trainer.summary()
    found = cells(capsys.readouterr().out)
    assert found["encoder"] == ["Dense", "16"]
    assert found["price"] == ["Dense", "10", "sparse_categorical_crossentropy", "0.5", "all"]
    assert found["size"] == ["Dense", "5 (0 trained)", "mean_squared_error", "a function of the step", "all"]
    assert found["together"] == ["31"]
    assert found["examples"] == ["4 batches, each in 2 micro-batches"]
    assert found["encoder's gradient"] == ["CAGrad(c=0.3), at the representation, solved in every 5th update"]
    words = "forward twice and backward once, or once where coefficients are reused, for each micro-batch"
    assert found["encoder's passes"] == [words]
    assert found["heads that train"][0].startswith("Alternate(") and found["clipping"] == ["ByGlobalNorm(5)"]
    assert found["optimizer"] == ["Adam, learning rate 0.002"] and found["encoder's learning rate"] == ["factor 0.1"]


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "forward twice and backward once"),
        ({"jit_compile": True}, "forward once and backward once per head"),
        ({"balancer": "NormFloor"}, None),
        ({"balance_every": 2}, "forward twice and backward once, or once where coefficients are reused"),
        (
            {"balance_at": "parameters", "balance_every": 2},
            "forward once and backward once per head, or once where coefficients are reused",
        ),
        ({"balancer": None, "weighting": "FAMO"}, "forward twice and backward once"),
        ({"balancer": None}, None),
        ({"micro_batches": 1}, None),
    ],
    ids=str,
)
def test_it_says_how_often_a_micro_batch_runs_through_the_encoder(options, words, capsys):
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    for name in "ab":
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile("sgd", **{"balancer": "UPGrad", "micro_batches": 2, **options})
    trainer.compute_gradients((np.ones([4, 3], np.float32), {name: np.ones([4, 1], np.float32) for name in "ab"}))
    trainer.summary()
    found = cells(capsys.readouterr().out).get("encoder's passes")
    assert (found is None) == (words is None) and (found is None or found == [f"{words}, for each micro-batch"])


def test_it_takes_the_arguments_of_keras(capsys):
    trainer, written = configured(), []
    trainer.summary(print_fn=lambda text, **options: written.append(text))
    assert len(written) == 2 and "Modules of" in written[0] and capsys.readouterr().out == ""
    trainer.compute_gradients([(np.ones([2, 3], np.float32), {"price": np.array([0, 1]), "size": np.ones([2, 1])})])
    trainer.summary(120)
    text = capsys.readouterr().out
    assert all(f"{name} (Dense)" in text for name in ("encoder", "price", "size"))
    assert trainer.encoder.name == "shared"


def test_a_trainer_that_is_not_compiled_has_one_too(capsys):
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.summary()
    assert "not compiled yet" in capsys.readouterr().out
