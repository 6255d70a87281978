"""Scheduled sampling: a probability that is set while a model trains, or that is a function of the step."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from multihead.callbacks import Checkpoint
from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder
from tests.helpers.seq2seq import ENGINES

pytestmark = pytest.mark.first_cases(1)  # the others are thorough

X = np.concatenate([np.random.default_rng(0).integers(4, 9, (8, 4)), np.full((8, 1), 3)], axis=1)


@keras.saving.register_keras_serializable(package="test_sampling_probability")
def from_the_second_epoch(step):
    """Of two updates."""
    return tf.where(step < 2, 0.0, 1.0)


def made(probability, engine=None, **options):
    """A trainer that learns nothing, with weights so large that samples are certain."""
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(Seq2SeqEncoder(9, 3, 4, cell="gru"))
    decoder = Seq2SeqDecoder(9, 3, 4, cell="gru", sampling_probability=probability, engine=engine, **options)
    trainer.add_head("copy", decoder, losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.compile(keras.optimizers.SGD(0.0))
    trainer.compute_gradients((X, {"copy": X}))
    make_certain(trainer.trainable_variables, decoder)
    return trainer, decoder


def make_certain(variables, decoder):
    """Sets weights so large that one id has all of the probability."""
    for number, weight in enumerate(variables):
        size = int(np.prod(weight.shape))
        weight.assign(np.sin(number + 1.0 + np.arange(size) ** 2).reshape(weight.shape) * 3)
    decoder.output_layer.kernel.assign(decoder.output_layer.kernel * 300)


def fit(trainer, *callbacks, epochs=2):
    return trainer.fit(X, {"copy": X}, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks)).history["loss"]


class Curriculum(keras.callbacks.Callback):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def on_epoch_begin(self, epoch, logs=None):
        self.decoder.sampling_probability = [0.0, 1.0][epoch]


def loss_of(encoder, decoder):
    """The loss of the rows with the present probability, computed without a trainer's step."""
    logits = np.asarray(decoder(encoder(X), X, training=True), np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(logits, X[..., None], axis=-1)[..., 0]
    return (np.log(np.exp(logits).sum(axis=-1)) - chosen).mean()


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES[::-1])
def test_a_callback_and_a_function_of_the_step_take_effect(engine):
    trainer, decoder = made(0.5, engine)
    expected = []
    for probability in (0.0, 1.0):
        decoder.sampling_probability = probability
        expected.append(loss_of(trainer.encoder, decoder))
    assert abs(expected[0] - expected[1]) > 0.1 * abs(expected[1])
    assert fit(trainer, Curriculum(decoder)) == pytest.approx(expected, rel=1e-4)
    assert decoder.sampling_probability == 1.0
    assert fit(made(from_the_second_epoch, engine)[0]) == pytest.approx(expected, rel=1e-4)


DECODERS = [
    {"cell": "lstm", "attention": "bahdanau", "input_feeding": True},
    {"cell": "gru", "attention": "luong", "num_layers": 2},
    {"cell": "gru", "attention": None},
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("options", "policy"), list(itertools.product(DECODERS, ["mixed_float16", "mixed_bfloat16"])))
def test_the_same_in_half_precision(options, policy):
    losses_by_policy = {}
    for dtype in (policy, None):
        encoder = Seq2SeqEncoder(9, 3, 4, cell=options["cell"], dtype=dtype)
        decoder = Seq2SeqDecoder(9, 3, 4, sampling_probability=1.0, engine="native", dtype=dtype, **options)
        decoder(encoder(X), X)
        make_certain([*encoder.trainable_variables, *decoder.trainable_variables], decoder)
        losses_by_policy[dtype] = loss_of(encoder, decoder)
    assert losses_by_policy[policy] == pytest.approx(losses_by_policy[None], rel=0.1)


@pytest.mark.thorough
def test_a_value_that_a_callback_has_set_is_resumed(tmp_path):
    class Once(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.heads["copy"].module.sampling_probability = 1.0
            else:
                raise KeyboardInterrupt

    trainer, decoder = made(1.0)
    expected = loss_of(trainer.encoder, decoder)
    trainer, _ = made(0.5)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, Checkpoint(tmp_path), Once())
    trainer, decoder = made(0.5)
    assert fit(trainer, Checkpoint(tmp_path))[-1] == pytest.approx(expected, rel=1e-4)
    assert decoder.sampling_probability == 1.0


def test_a_schedule_of_keras_and_the_step_by_hand():
    schedule = keras.optimizers.schedules.PolynomialDecay(0.0, 10, 1.0)
    decoder, encoder = Seq2SeqDecoder(9, 3, 4, sampling_probability=schedule), Seq2SeqEncoder(9, 3, 4)
    representation = encoder(X)
    plain = decoder(representation, X)
    np.testing.assert_allclose(decoder(representation, X, training=True, step=tf.constant(0, tf.int64)), plain, atol=1e-5)
    with pytest.raises(ValueError, match=r"`step` is needed for a `sampling_probability` .* Received: step=None\."):
        decoder(representation, X, training=True)
    wrong = Seq2SeqDecoder(9, 3, 4, sampling_probability=lambda step: tf.zeros([2]))
    with pytest.raises(ValueError, match=r"`sampling_probability` must give one number at each step\. Received: .*\(2,\)"):
        wrong(representation, X, training=True, step=tf.constant(0, tf.int64))


def test_what_cannot_be_set():
    decoder, representation = Seq2SeqDecoder(9, 3, 4), Seq2SeqEncoder(9, 3, 4)(X)
    with pytest.raises(ValueError, match=r"`sampling_probability` must be a number from 0 to 1\. Received: .*=1\.1\."):
        decoder.sampling_probability = 1.1
    decoder.sampling_probability = 0.0
    decoder(representation, X)
    message = (
        r"`sampling_probability` can be set after the first batch only .* Received: sampling_probability=0\.5 after 0\.0"
    )
    with pytest.raises(ValueError, match=message):
        decoder.sampling_probability = 0.5
    decoder = Seq2SeqDecoder(9, 3, 4)
    decoder.sampling_probability = 0.5  # before anything is built
    decoder(representation, X)
    decoder.sampling_probability = 0.0
    with pytest.raises(ValueError, match=r"Received: sampling_probability=<function"):
        decoder.sampling_probability = from_the_second_epoch
