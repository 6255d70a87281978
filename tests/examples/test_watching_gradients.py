"""The ledger has the gradients that a tape gives, and tells which layer starves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import watching_gradients as program
from tests.helpers.tiny import tensor_variable

pytestmark = pytest.mark.programs


def by_tape(trainer, batch, heads):
    """The norms of the encoder's gradients by layer, from Keras's own losses."""
    inputs, targets = batch
    losses = {"kind": keras.losses.sparse_categorical_crossentropy, "size": keras.losses.mean_squared_error}
    with tf.GradientTape() as tape:
        predictions = trainer(inputs)
        loss = tf.add_n([tf.reduce_mean(losses[head](targets[head], predictions[head])) for head in heads])
        variables = [tensor_variable(variable) for variable in trainer.encoder.trainable_variables]
    squares = [float(tf.reduce_sum(gradient**2)) for gradient in tape.gradient(loss, variables)]
    return np.sqrt(np.reshape(squares, (program.LAYERS, 2)).sum(axis=1))  # kernel and bias


def test_norms_are_those_of_a_tape_and_the_first_sigmoid_layers_starve(monkeypatch, tmp_path, eager_updates):
    monkeypatch.setattr(program, "EVERY", 1)
    ratios = {}
    for activation in program.TITLES:
        norms, history = program.train(activation, 0, 64, 2, tmp_path / "ledger.jsonl")
        assert norms.shape == (2, 3, program.LAYERS) and len(history["size_loss"]) == 2
        trainer = program.make_trainer(activation, 0)
        for row, heads in enumerate((["kind"], ["size"], ["kind", "size"])):
            expected = by_tape(trainer, program.make_data(np.random.default_rng(0), 64), heads)
            np.testing.assert_allclose(norms[0, row], expected, rtol=2e-4)
        ratios[activation] = norms[0, :, 0] / norms[0, :, -1]
        assert activation == "tanh" or (np.diff(norms[0]) > 0).all()
    assert (ratios["sigmoid"] < 1e-3).all() and (0.1 < ratios["tanh"]).all() and (ratios["tanh"] < 10).all()


def test_the_program(tmp_path, capsys, eager_updates):
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    assert "sigmoid: layer 1 has the smallest gradient" in capsys.readouterr().out
    assert (tmp_path / "watching_gradients.png").read_bytes().startswith(b"\x89PNG")
