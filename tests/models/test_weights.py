"""Weights saved by Keras 2 and by Keras 3 load and decode the same on both.

The files in `saved/` were written by this module run as a program, once on each stack (`python -m
tests.models.test_weights [KIND]`); beside the weights they hold what the model answered there.
"""

from __future__ import annotations

import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead.models import (
    PriceClassifier,
    Seq2SeqDecoder,
    Seq2SeqEncoder,
    TransformerDecoder,
    TransformerEncoder,
    load_weights,
    save_weights,
)

SAVED = pathlib.Path(__file__).parent / "saved"
TOKENS = tf.constant([[4, 5, 6, 7], [9, 4, 0, 0], [5, 0, 0, 0]])
TARGETS = tf.constant([[4, 5, 3], [7, 3, 0], [3, 0, 0]])
MODELS = {
    "lstm": ({"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "attention": "luong"}),
    "gru": ({"num_layers": 1}, {"num_layers": 2, "attention": "bahdanau", "input_feeding": True}),
    "transformer": ({"num_heads": 2, "num_layers": 1}, {"num_heads": 2, "num_layers": 2, "feed_forward_units": 5}),
}


def make(cell):
    encoder_options, decoder_options = MODELS[cell]
    kinds = TransformerEncoder, TransformerDecoder
    if cell != "transformer":
        kinds = Seq2SeqEncoder, Seq2SeqDecoder
        encoder_options, decoder_options = ({**each, "cell": cell} for each in (encoder_options, decoder_options))
    layers = {
        "encoder": kinds[0](12, 3, 4, **encoder_options),
        "decoder": kinds[1](9, 3, 4, maximum_length=6, **decoder_options),
        "price": PriceClassifier(3, hidden_units=5, pool=True),
    }
    answer(layers)
    return layers


def answer(layers):
    representation = layers["encoder"](TOKENS)
    best = layers["decoder"].decode(representation, beam_width=3, num_best=2, length_penalty=0.6)
    return {
        "logits": layers["decoder"](representation, TARGETS),
        "greedy": layers["decoder"].generate(representation),
        "ids": best.ids,
        "scores": best.scores,
        "prices": layers["price"](representation),
    }


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("cell", ["lstm", "transformer", "gru"])
@pytest.mark.parametrize("saved_by", ["keras2", "keras3"])
def test_both_stacks_read_both_stacks_files(saved_by, cell):
    layers = make(cell)
    load_weights(SAVED / f"{cell}_{saved_by}.npz", layers)
    expected = np.load(SAVED / f"{cell}_{saved_by}_answers.npz")
    for name, value in answer(layers).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.thorough
def test_a_round_trip_restores_every_weight(tmp_path):
    saved, loaded = make("gru"), make("gru")
    save_weights(tmp_path / "all.npz", saved)
    load_weights(tmp_path / "all.npz", loaded)
    for name in saved:
        assert all(map(np.array_equal, saved[name].get_weights(), loaded[name].get_weights()))


def test_wrong_files_and_layers(tmp_path):
    layers = make("gru")
    with pytest.raises(ValueError, match=r"`path` must end in \.npz\. Received: path='weights\.h5'\."):
        save_weights("weights.h5", layers)
    with pytest.raises(ValueError, match=r"`layers` must be built\. Received: 'new', which has no weights yet\."):
        save_weights(tmp_path / "new.npz", {"new": Seq2SeqEncoder(12, 3, 4)})
    with pytest.raises(FileNotFoundError):
        load_weights(tmp_path / "none.npz", layers)
    save_weights(tmp_path / "price.npz", {"price": layers["price"]})
    with pytest.raises(ValueError, match=r"file, which holds \['price'\]\. Received: 'encoder'\."):
        load_weights(tmp_path / "price.npz", {"encoder": layers["encoder"]})
    save_weights(tmp_path / "lstm.npz", make("lstm"))
    before = layers["price"].get_weights()
    with pytest.raises(ValueError, match=r"Received: 'encoder' with weights of shapes .* the file holds .* Build"):
        load_weights(tmp_path / "lstm.npz", layers)
    assert all(map(np.array_equal, before, layers["price"].get_weights()))


if __name__ == "__main__":
    stack = f"keras{keras.__version__[0]}"
    SAVED.mkdir(exist_ok=True)
    for kind in sys.argv[1:] or MODELS:
        keras.utils.set_random_seed(0)
        model = make(kind)
        for part in model.values():
            part.set_weights([3 * value for value in part.get_weights()])
        save_weights(SAVED / f"{kind}_{stack}.npz", model)
        np.savez(SAVED / f"{kind}_{stack}_answers.npz", **answer(model))
