"""What a learning rate by part may be, and which factor it gives each variable."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from multihead import ByPath, LayerwiseDecay, MultiHeadTrainer, Stages
from multihead._update.network import Network, Predictions
from multihead.heads._named import new_head
from multihead.rates import periods_of


def built(layer, width=2):
    layer.build((None, width))
    return layer


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LayerwiseDecay(0), ValueError, "`decay` must be a finite number above 0 and at most 1. Received: decay=0"),
        (lambda: LayerwiseDecay(0.9, top=-1), ValueError, "`top` must be a finite number of at least 0.* Received: top=-1"),
        (lambda: ByPath([0.1]), TypeError, "`factors` must be a dict from regular expressions to factors.* Received"),
        (lambda: ByPath({"(": 1}), ValueError, "regular expressions as keys. Received: '\\('"),
        (lambda: ByPath({"a": float("nan")}), ValueError, "`factors\\['a'\\]` must be a finite number.* Received.*nan"),
        (lambda: Stages({1: 0}), ValueError, "whole numbers as keys, from 0 on and increasing. Received: \\[1\\]"),
        (lambda: Stages({0: 0, 5: 1, 2: 0}), ValueError, "increasing. Received: \\[0, 5, 2\\]"),
        (lambda: Stages([0, 1]), TypeError, "`stages` must be a dict from steps to factors. Received"),
        (lambda: Stages({0: Stages({0: 1})}), TypeError, "`stages\\[0\\]` must be a finite number"),
    ],
)
def test_errors_say_what_is_wrong(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_factors_of_heads_and_of_weight_decay_are_checked():
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    for argument in ("learning_rate_multiplier", "weight_decay_multiplier"):
        with pytest.raises(
            ValueError, match=f"`{argument}` must be a finite number of at least 0.* Received: {argument}=-1"
        ):
            trainer.add_head("a", keras.layers.Dense(1), "mse", **{argument: -1})
    trainer.add_head("a", keras.layers.Dense(1), "mse", weight_decay_multiplier=0.5)
    with pytest.raises(
        ValueError, match="`weight_decay_multiplier of head 'a'` must be 0 or 1 for an optimizer without weight decay"
    ):
        trainer.compile("adam")
    with pytest.raises(
        TypeError,
        match="`encoder_learning_rate_multiplier` must be a finite number.* Received: encoder_learning_rate_multiplier='a'",
    ):
        trainer.compile(keras.optimizers.AdamW(), encoder_learning_rate_multiplier="a")
    trainer.compile(keras.optimizers.AdamW(), encoder_weight_decay_multiplier=0)


def test_a_function_must_return_a_number_of_at_least_0():
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", keras.layers.Dense(1), "mse", learning_rate_multiplier=lambda step: -1.0)
    trainer.compile("sgd")
    pairs = trainer.compute_gradients((tf.ones([2, 2]), {"a": tf.ones([2, 1])}))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must return a finite number of at least 0"):
        trainer.apply_gradients(pairs)


def test_depth_is_counted_in_layers_and_through_models():
    inner = keras.Sequential([keras.layers.Dense(2), keras.layers.ReLU(), keras.layers.Dense(2)])
    encoder = keras.Sequential([keras.layers.Embedding(3, 2), inner, keras.layers.Dense(2)])
    encoder(tf.constant([[1]]))
    found = LayerwiseDecay(0.5, top=2).factors(encoder, encoder.trainable_variables)
    assert found == [0.25, 0.5, 0.5, 1, 1, 2, 2]
    step = tf.constant(3, tf.int64)
    changing = LayerwiseDecay(0.5, top=lambda step: tf.cast(step, tf.float32)).factors(encoder, encoder.trainable_variables)
    assert [float(factor(step)) for factor in changing] == [0.375, 0.75, 0.75, 1.5, 1.5, 3, 3]


class Stacked(tf.Module):
    """Keras layers, of which Keras knows nothing."""

    def __init__(self):
        super().__init__()
        self.low, self.high = built(keras.layers.Dense(2)), built(keras.layers.Dense(2))


def test_the_depth_of_a_module_without_layers_is_not_guessed():
    module = Stacked()
    with pytest.raises(
        ValueError, match="`LayerwiseDecay` must be used for a Keras layer.*Received: a module of type Stacked"
    ):
        LayerwiseDecay(0.5).factors(module, module.trainable_variables)


def network_of(encoder, heads):
    """A network whose losses read no variables."""
    return Network.of(encoder, heads, {head.name: Predictions(tf.TensorSpec([None, 2]), False, (True,)) for head in heads})


def test_shared_variables_follow_the_encoder_or_the_largest_factor_of_their_heads():
    encoder, shared, alone = (built(keras.layers.Dense(2, use_bias=False)) for _ in range(3))
    both, tied = keras.Sequential([shared, alone]), keras.Sequential([encoder, shared])
    for module in (both, tied):
        module(tf.ones([1, 2]))
    heads = [
        new_head("both", both, "mse", learning_rate_multiplier=0.2),
        new_head("tied", tied, "mse", learning_rate_multiplier=0),
    ]
    (rates,) = periods_of(network_of(encoder, heads), 0.5, 1.0)
    assert rates.steps == (0.5, 0.2, 0.2) and rates.frozen == frozenset()
    assert rates.at(tf.constant(0)).numpy().tolist() == pytest.approx([0.5, 0.2, 0.2])
    heads[0].learning_rate_multiplier = lambda step: 0.1 * tf.cast(step, tf.float32)
    (rates,) = periods_of(network_of(encoder, heads), 0.5, 1.0)
    assert rates.at(tf.constant(3)).numpy().tolist() == pytest.approx([0.5, 0.3, 0.3])


def test_something_is_trained_in_every_stage():
    encoder, module = (built(keras.layers.Dense(2)) for _ in range(2))
    network = network_of(encoder, [new_head("a", module, "mse", learning_rate_multiplier=Stages({0: 1, 7: 0}))])
    with pytest.raises(ValueError, match="must leave something to train.* Received: everything is frozen from step 7 on"):
        periods_of(network, 0, 1.0)


def test_a_pattern_is_found_in_a_path():
    low, high = keras.layers.Dense(2, name="low"), keras.layers.Dense(2, name="high")
    encoder = keras.Sequential([low, high], name="encoder")
    encoder(tf.ones([1, 2]))
    for pattern, near in (("lwo", "low"), ("low/kernal", "encoder/low/kernel"), ("Bias", "bias")):
        with pytest.raises(ValueError, match=f"found in the path.*'{pattern}'; the paths are.*Did you mean '{near}'"):
            ByPath({"high": 1, pattern: 0}).factors(encoder, encoder.trainable_variables)
    low.trainable = False
    assert ByPath({"low": 0}).factors(encoder, encoder.trainable_variables) == [1, 1]  # found, though frozen in any case
    assert ByPath({"high/kernel": 0, "kernel": 0.5}).factors(encoder, [high.kernel]) == [0]
    with pytest.warns(UserWarning, match="key without effect: 'high/kernel'.*and 'kernel' comes before it"):
        assert ByPath({"kernel": 0.5, "high/kernel": 0}).factors(encoder, [high.kernel]) == [0.5]
    with pytest.warns(UserWarning, match="key without effect: 'high/kernel'.*and 'kernel' comes before it"):
        ByPath({"bias": 0, "kernel": 0.5, "high/kernel": 0}).factors(encoder, encoder.trainable_variables)  # as of 'bias'
    with pytest.raises(ValueError, match="Received: 'low'; the paths are none"):
        ByPath({"low": 0}).factors(tf.identity, [])


@keras.saving.register_keras_serializable(package="tests")
def half(path):
    return 0.5


def test_they_come_back_from_their_configuration():
    for rate in (LayerwiseDecay(0.7, top=0.1), ByPath({"a": 0}), ByPath(half), Stages({0: 0, 10: LayerwiseDecay(0.5)})):
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(rate))
        assert type(again) is type(rate) and again.get_config() == rate.get_config()
