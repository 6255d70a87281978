"""Updates written by hand: a plain tape over the promised formula, NumPy in float64 for the rest.

Nothing here comes from the library. A head's loss is the weighted sum over its labelled elements in all batches of the
update, divided once by the sum of the weights.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.helpers import tiny
from tests.helpers.tiny import tensor_variable

DECAY = 0.1
"""The weight decay that is applied by hand."""


def element_losses(predictions, batch):
    """Per head: the losses of elements and which of them are labelled, from a batch of `tiny.data`."""
    _, targets = batch
    tag = np.asarray(targets["tag"])
    price = np.asarray(targets["price"])
    size = np.asarray(targets["size"])
    result = {}
    if "tag" in predictions:
        values = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tag, logits=predictions["tag"])
        result["tag"] = values, tag != 0
    if "price" in predictions:
        chosen = tf.gather(predictions["price"], np.maximum(price, 0), axis=1, batch_dims=1)
        result["price"] = -tf.math.log(chosen), price >= 0
    if "size" in predictions:
        clean = np.nan_to_num(size)
        result["size"] = tf.square(predictions["size"][:, 0] - clean), ~np.isnan(size)
    return result


class Reference:
    """A network trained by hand.

    Args:
        encoder, heads: Its modules, built.
        optimizer: A Keras optimizer of its own.
        weights: The heads' weights.
        combine: From the Gramian in float64 to the heads' coefficients, or None for the plain sum.
        level: `"representation"` or `"parameters"`.
        clip: A global norm, or None.
        total: From the heads' weighted losses and `learned` to the total loss; their sum by default.
        learned: Variables of the total.
        factors: From the number of updates so far to a factor of the step of each variable.
        decays: A factor of the weight decay, `DECAY`, of each variable; the optimizer must have none of its own.
    """

    def __init__(self, encoder, heads, optimizer, weights, combine=None, level="representation", clip=None, **others):
        self.encoder, self.heads, self.optimizer = encoder, heads, optimizer
        self.weights, self.combine, self.level, self.clip = weights, combine, level, clip
        self.total, self.learned = others.get("total", lambda losses, _: tf.add_n(losses)), others.get("learned", [])
        self.factors, self.decays, self.count = others.get("factors"), others.get("decays"), 0

    @property
    def variables(self):
        found = [v for module in (self.encoder, *self.heads.values()) for v in module.trainable_variables]
        return [*found, *self.learned]

    def gradients(self, batches, sample_weights=None, active=None):
        """One gradient per variable, None for idle heads, after balancing and before clipping; and the Gramian."""
        names = [name for name in self.heads if active is None or name in active]
        encoder_variables = [tensor_variable(v) for v in self.encoder.trainable_variables]
        with tf.GradientTape(persistent=True) as tape:
            sums = dict.fromkeys(names, 0.0)
            counts = dict.fromkeys(names, 0.0)
            leaves = []
            for i, batch in enumerate(batches):
                representation = self.encoder(batch[0])
                leaves += [representation["outputs"], representation["mean"]]
                predictions = {name: self.heads[name](representation) for name in names}
                for name, (losses, labelled) in element_losses(predictions, batch).items():
                    weight = labelled.astype("float32")
                    if sample_weights is not None and name in sample_weights[i]:
                        given = np.asarray(sample_weights[i][name], "float32")
                        weight = weight * given.reshape(given.shape + (1,) * (weight.ndim - given.ndim))
                    sums[name] += tf.reduce_sum(tf.where(weight > 0, losses, 0.0) * weight)
                    counts[name] += weight.sum()
            names = [name for name in names if counts[name] > 0]
            means = {name: self.weights[name] * sums[name] / counts[name] for name in names}
            total = self.total(list(means.values()), self.learned)
        dense = lambda gradients: [None if g is None else tf.convert_to_tensor(g) for g in gradients]  # noqa: E731
        own = {
            name: dense(tape.gradient(total, [tensor_variable(v) for v in self.heads[name].trainable_variables]))
            for name in names
        }
        gramian = None
        if self.combine is None:
            shared = dense(tape.gradient(total, encoder_variables))
        else:
            flat = []
            per_head = []
            for name in names:
                per_head.append(dense(tape.gradient(means[name], encoder_variables)))
                # `mean` is computed from `outputs`: the leaves of the representation are taken one by one, without what flows between.
                if self.level == "parameters":
                    seen = self.trained(per_head[-1])
                else:
                    seen = self._at_representation(batches, name, sums, counts, sample_weights)
                flat.append(np.concatenate([np.asarray(g, "float64").ravel() for g in seen]))
            matrix = np.stack(flat)
            gramian = matrix @ matrix.T
            coefficients = self.combine(gramian)
            shared = [
                tf.add_n([tf.cast(float(c) * tf.cast(g, tf.float64), tf.float32) for c, g in zip(coefficients, column)])
                for column in zip(*per_head)
            ]
        gradients = list(shared)
        for name in self.heads:
            gradients += own.get(name) or [None] * len(self.heads[name].trainable_variables)
        return gradients + dense(tape.gradient(total, self.learned)), gramian

    def trained(self, gradients):
        """Those of the encoder's gradients whose variables are trained."""
        # If nothing is trained, it is by a function of the step, and how the heads are combined changes nothing.
        factors = self.factors(self.count) if self.factors else [1] * len(gradients)
        return [gradient for gradient, factor in zip(gradients, factors) if factor > 0] or gradients

    def _at_representation(self, batches, name, sums, counts, sample_weights):
        """The gradient of a head's weighted mean loss with respect to detached leaves of the representation."""
        gradients = []
        for i, batch in enumerate(batches):
            representation = dict(self.encoder(batch[0]))
            outputs, mean = tf.constant(representation["outputs"]), tf.constant(representation["mean"])
            with tf.GradientTape() as tape:
                tape.watch([outputs, mean])
                prediction = self.heads[name]({"outputs": outputs, "mean": mean, "mask": representation["mask"]})
                ((losses, labelled),) = element_losses({name: prediction}, batch).values()
                weight = labelled.astype("float32")
                if sample_weights is not None and name in sample_weights[i]:
                    given = np.asarray(sample_weights[i][name], "float32")
                    weight = weight * given.reshape(given.shape + (1,) * (weight.ndim - given.ndim))
                loss = self.weights[name] * tf.reduce_sum(tf.where(weight > 0, losses, 0.0) * weight) / counts[name]
            for leaf, gradient in zip((outputs, mean), tape.gradient(loss, [outputs, mean])):
                gradients.append(tf.zeros_like(leaf) if gradient is None else gradient)
        return gradients

    def update(self, batches, sample_weights=None, active=None):
        gradients, _ = self.gradients(batches, sample_weights, active)
        if self.clip is not None:
            norm = np.sqrt(sum(np.sum(np.asarray(g, "float64") ** 2) for g in gradients if g is not None))
            factor = self.clip / max(norm, self.clip)
            gradients = [None if g is None else tf.cast(tf.cast(g, tf.float64) * factor, tf.float32) for g in gradients]
        variables = [tensor_variable(v) for v in self.variables]
        factors = self.factors(self.count) if self.factors else [1] * len(variables)
        # What a factor of 0 freezes does not take part: the optimizer's slots must not change either.
        trained = [i for i, g in enumerate(gradients) if g is not None and factors[i] > 0]
        old = [tf.identity(variable) for variable in variables]
        for i in trained if self.decays else []:
            rate = tf.convert_to_tensor(self.optimizer.learning_rate)
            variables[i].assign_sub(variables[i] * DECAY * self.decays[i] * rate)
        self.optimizer.apply_gradients([(gradients[i], self.variables[i]) for i in trained])
        for i in trained:
            if factors[i] != 1:
                variables[i].assign(old[i] + factors[i] * (variables[i] - old[i]))
        self.count += 1


def built(batch, *args, **others):
    """A reference of the modules of `tests/helpers/tiny.py`, built by a batch; further arguments are those after `heads`."""
    encoder, heads = tiny.modules()
    representation = encoder(tf.constant(batch[0]))
    for head in heads.values():
        head(representation)
    return Reference(encoder, heads, *args, **others)
