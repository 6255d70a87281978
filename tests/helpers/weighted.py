"""Weightings in the trainer, and tapes by hand over their total losses."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.helpers import reference, tiny
from tests.helpers.gathering import dataset, padded

HEADS = ("tag", "price", "size")

GATHERED = {"whole": (1, 1), "micro-batches": (1, 3), "batches": (3, 1), "both": (3, 2)}


def adam():
    return keras.optimizers.Adam(0.01, epsilon=1e-5)


def geometric_mean(losses, _):
    return tf.pow(losses[0] * losses[1] * losses[2], 1 / 3)


def logarithms(losses, _):
    return tf.math.log(losses[0]) + tf.math.log(losses[1]) + tf.math.log(losses[2])


def smooth_maximum(losses, _):
    return tf.reduce_logsumexp(tf.stack(losses))


def uncertainty(losses, learned):
    return tf.add_n([0.5 * tf.exp(-s) * loss + 0.5 * s for s, loss in zip(learned, losses)])


def scales(losses, learned):
    return tf.add_n([tf.exp(s) * loss - s for s, loss in zip(learned, losses)])


def soft_optimum(losses, _):
    weights = tf.nn.softmax(tf.stop_gradient(1 / tf.stack(losses)))
    return tf.reduce_sum(weights * tf.stack(losses))


TOTALS = {
    "GeometricMean": geometric_mean,
    "LogLoss": logarithms,
    "SmoothTchebycheff": smooth_maximum,
    "Uncertainty": uncertainty,
    "IMTLL": scales,
    "UWSO": soft_optimum,
}


def by_hand(updates, total):
    """The weights, and what is learned, after updates by a tape over the total."""
    learned = [tf.Variable(0.0) for _ in HEADS]
    found = reference.built(updates[0][0], adam(), tiny.WEIGHTS, total=total, learned=learned)
    for batches in updates:
        found.update(batches)
    return tiny.values(found.variables[: -len(HEADS)]), [float(variable) for variable in learned]


def trained(updates, name, gathering, strategy=None, **options):
    num_batches, micro_batches = GATHERED[gathering]
    batches = [batch for update in updates for batch in update] if num_batches > 1 else [padded(u) for u in updates]
    compiled = {"weighting": name, "micro_batches": micro_batches, "gradient_accumulation_steps": num_batches, **options}
    if strategy is None:
        trainer = tiny.trainer(adam(), **compiled)
    else:
        with strategy.scope():
            trainer = tiny.trainer(adam(), **compiled)
    history = trainer.fit(dataset(batches), verbose=0, shuffle=False).history
    return tiny.weights_of(trainer), trainer, history
