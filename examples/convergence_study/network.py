"""The network of the study: one hidden state `[batch, units]`, and two heads that read only this state.

The encoder of `multihead.models` returns its hidden state under two names, one for each head. Here both heads read the same
tensor, so that their gradients can be compared and balanced there.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples.seq2seq_price import batches, report
from examples.seq2seq_price.columns import accuracy
from examples.seq2seq_price.data import Data
from examples.seq2seq_price.model import END_ID, NO_LABEL, PADDING_ID, START_ID
from multihead.models import PriceClassifier, Seq2SeqDecoder, Seq2SeqEncoder

EVALUATION_ROWS = 512
"""Rows per evaluation batch; gradients are measured on the first one."""
Weights = list[list[np.ndarray]]


class FinalState(keras.layers.Layer):
    """The encoder up to its final hidden state."""

    def __init__(self, encoder: Seq2SeqEncoder) -> None:
        super().__init__(name="encoder")
        self.encoder = encoder

    def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self.encoder(ids, training=training)["final"]


class Reply(keras.layers.Layer):
    """The decoder, applied to a hidden state."""

    def __init__(self, decoder: Seq2SeqDecoder) -> None:
        super().__init__(name="reply")
        self.decoder = decoder

    def call(self, hidden: tf.Tensor, targets: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self.decoder(_representation(hidden), targets, training=training)

    def generate(self, hidden: tf.Tensor) -> tf.Tensor:
        return self.decoder.generate(_representation(hidden))


class Price(keras.layers.Layer):
    """The classifier, applied to a hidden state."""

    def __init__(self, classifier: PriceClassifier) -> None:
        super().__init__(name="price")
        self.classifier = classifier

    def call(self, hidden: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self.classifier({"final": hidden}, training=training)


def _representation(hidden: tf.Tensor) -> dict[str, Any]:
    """The parts of a representation that a decoder without attention reads."""
    step = hidden[:, tf.newaxis]
    return {"outputs": step, "state": (hidden,), "final": hidden, "mask": tf.ones(tf.shape(step)[:2], tf.bool)}


class Network:
    """The three modules, their initial weights for each seed, and their metrics on the validation rows.

    Args:
        data: The data to train and evaluate on.
        units: Size of the hidden state and of the price classifier's hidden layer.
        embedding: Size of the token embeddings.
    """

    def __init__(self, data: Data, *, units: int, embedding: int) -> None:
        train = data.splits["train"]
        vocabularies = batches.vocabularies(train)
        self.vectorizers = batches.Vectorizers.of(*vocabularies)
        self._read = batches.TargetReader(vocabularies[1])
        self._sizes = [len(vocabulary) + 2 for vocabulary in vocabularies]
        self._units, self._embedding, self._ranges = units, embedding, len(data.ranges.names)
        # Longer replies are wrong in any case.
        every_target = [*train.targets, *data.splits["dev"].targets]
        self._longest = batches.longest(every_target, batches.standardize_target) + 1
        self._drawn: dict[tuple[int, float | None], Weights] = {}
        self.encoder, self.reply, self.price = self.make_modules()
        self.modules: list[Any] = [self.encoder, self.reply, self.price]
        dev = data.splits["dev"]
        self._dev = list(batches.evaluation_batches(dev, self.vectorizers, EVALUATION_ROWS))
        self._wanted = dev.targets
        sources = tf.cast(self.vectorizers.source(dev.texts), tf.int32)
        rows = range(0, len(dev.texts), EVALUATION_ROWS)
        self._sources = [sources[row : row + EVALUATION_ROWS].to_tensor() for row in rows]
        ids = tf.TensorSpec([None, None], tf.int32)
        signature = [ids, ids, tf.TensorSpec([None], tf.int32)]
        self._sums = tf.function(self._add_up, input_signature=signature, autograph=False)
        self._meet = tf.function(self._gradients, input_signature=signature, autograph=False)
        self._generate = tf.function(lambda ids: self.reply.generate(self.encoder(ids)), input_signature=[ids])

    def make_modules(self) -> tuple[FinalState, Reply, Price]:
        """New modules, with initial weights from the layers' initializers."""
        source, target = self._sizes
        decoder = Seq2SeqDecoder(
            target,
            self._embedding,
            self._units,
            cell="gru",
            attention=None,
            start_id=START_ID,
            end_id=END_ID,
            maximum_length=self._longest,
        )
        encoder = FinalState(Seq2SeqEncoder(source, self._embedding, self._units, cell="gru"))
        reply, price = Reply(decoder), Price(PriceClassifier(self._ranges, hidden_units=self._units))
        ids = tf.ones([1, 1], tf.int32)
        hidden = encoder(ids)
        reply(hidden, ids)
        price(hidden)
        return encoder, reply, price

    def draw(self, seed: int, deviation: float | None = None) -> Weights:
        """Initial weights for a seed: from the layers' initializers, or normal with the given standard deviation."""
        if (seed, deviation) not in self._drawn:  # setting the seed again would make TensorFlow retrace every function
            self._drawn[seed, deviation] = self._draw(seed, deviation)
        return self._drawn[seed, deviation]

    def _draw(self, seed: int, deviation: float | None) -> Weights:
        if deviation is None:
            keras.utils.set_random_seed(seed)
            return [module.get_weights() for module in self.make_modules()]
        generator = np.random.default_rng(seed)
        shapes = [[value.shape for value in module.get_weights()] for module in self.modules]
        return [[generator.normal(0.0, deviation, shape).astype("float32") for shape in each] for each in shapes]

    def set(self, weights: Weights) -> None:
        """Sets the weights of the modules."""
        for module, values in zip(self.modules, weights):
            module.set_weights(values)

    def losses(
        self, ids: tf.Tensor, reply: tf.Tensor, price: tf.Tensor, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The hidden state; the summed reply loss and its token count; the summed price loss and its label count."""
        hidden = self.encoder(ids, training=training)
        return (hidden, *self.head_losses(hidden, reply, price, training=training))

    def head_losses(
        self, hidden: tf.Tensor, reply: tf.Tensor, price: tf.Tensor, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The sums and counts of both losses for a hidden state."""
        logits = self.reply(hidden, reply, training=training)
        tokens = tf.cast(reply != PADDING_ID, tf.float32)
        of_reply = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(tokens > 0, reply, 0), logits)
        labelled = tf.cast(price != NO_LABEL, tf.float32)
        chosen = tf.gather(self.price(hidden, training=training), tf.maximum(price, 0), axis=1, batch_dims=1)
        of_price = -tf.math.log(tf.maximum(chosen, 1e-7))
        return (
            tf.reduce_sum(of_reply * tokens),
            tf.reduce_sum(tokens),
            tf.reduce_sum(of_price * labelled),
            tf.reduce_sum(labelled),
        )

    def evaluate(self, *, exact: bool) -> dict[str, float]:
        """Metrics of both heads on the validation rows, whether or not the heads are trained.

        `reply_loss` and `price_loss` are means over tokens and labels, `price_accuracy` is over labelled rows. `reply_norm`
        and `price_norm` are the norms of the gradients of the unweighted mean losses with respect to the hidden state, on
        one batch, and `cosine` is the cosine between these gradients.

        Args:
            exact: Whether to generate replies as well, for `reply_exact`, the fraction that matches exactly.
        """
        sums = np.zeros(4)
        labels, predicted = [], []
        for ids, targets in self._dev:
            found, classes = self._sums(ids, targets["reply"], targets["price"])
            sums += found.numpy()
            labels.append(targets["price"].numpy())
            predicted.append(classes.numpy())
        ids, targets = self._dev[0]
        norms, cosine = self._meet(ids, targets["reply"], targets["price"])
        figures = {
            "reply_loss": float(sums[0] / sums[1]),
            "price_loss": float(sums[2] / max(sums[3], 1)),
            "price_accuracy": accuracy(np.concatenate(labels), np.concatenate(predicted)).get("price_accuracy", 0.0),
            "reply_norm": float(norms[0]),
            "price_norm": float(norms[1]),
            "cosine": float(cosine),
        }
        if exact:
            received = [reply for ids in self._sources for reply in self._read(self._generate(ids))]
            figures["reply_exact"] = report.exact(self._wanted, received)
        return figures

    def _add_up(self, ids: tf.Tensor, reply: tf.Tensor, price: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden, *sums = self.losses(ids, reply, price)
        return tf.stack(sums), tf.argmax(self.price(hidden), axis=1)

    def _gradients(self, ids: tf.Tensor, reply: tf.Tensor, price: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden = self.encoder(ids)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(hidden)
            reply_sum, tokens, price_sum, labels = self.head_losses(hidden, reply, price)
        of_reply = tape.gradient(reply_sum, hidden) / tokens
        of_price = tape.gradient(price_sum, hidden) / tf.maximum(labels, 1.0)
        norms = tf.stack([tf.norm(of_reply), tf.norm(of_price)])
        return norms, tf.math.divide_no_nan(tf.reduce_sum(of_reply * of_price), tf.reduce_prod(norms))
