"""A head that tags the words of a sentence together: a linear-chain conditional random field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import crf
from ._checks import check_count, check_rate, check_representation
from ._recurrent import build_layer, dropout_layer

_NEVER = -1e4  # the log probability of tag 0; its exponential is 0


@keras.saving.register_keras_serializable(package="models")
class CRFTagger(keras.layers.Layer):
    """The tags of a sentence, from the encoder's outputs and trained scores of neighboring tags; see `multihead.models.crf`.

    As in `TokenTagger`, tag 0 stands for no tag: of padding, and of words whose tag is missing. It is never predicted for a
    word. The tags of a sentence are numbers from 1.

    A head with this module has `teacher_forcing=True` and the loss `multihead.losses.SequenceCrossentropy()`. Called with
    the tags, the module returns the log probabilities of each word's tag given the tags before it. The cross-entropies of
    a sentence then add up to the negative log likelihood of its tags. The loss is the sum over all sentences, divided by
    the number of words that have a tag. Words without a tag are summed over, which is exact; see `crf.log_likelihood`.
    Predictions, and the metrics of the head, are those of the most probable tags, which are found without the targets.

    The representation is a dict with `outputs`, floating `[batch, time, width]`, or these outputs alone. Absent words, given
    by the dict's `mask`, bool `[batch, time]`, or else by the Keras mask of the outputs, are skipped. Without a mask,
    padding is treated as words without a tag. The head computes in float32, whatever the dtype policy.

    Args:
        num_tags: Number of tags, tag 0 included.
        allowed: What `crf.allowed_transitions` returns for the names of the tags, of which the first is empty; predictions
            are then valid in the scheme of the names. Training does not use `allowed`, since labels may break a scheme. None
            to allow all.
        dropout: Fraction of the outputs that is dropped in training.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of its range, the representation lacks an entry, or the module is called without tags.

    Example:
        >>> names = ["", "O", "B-city", "I-city"]
        >>> tagger = CRFTagger(4, allowed=crf.allowed_transitions(names, "IOB"))
        >>> tagger.generate({"outputs": tf.zeros([2, 7, 16])}).shape
        TensorShape([2, 7])
    """

    has_impossible_labels = True  # tag 0

    def __init__(
        self, num_tags: int, *, allowed: Sequence[Any] | None = None, dropout: float = 0.0, name: str | None = None
    ) -> None:
        super().__init__(name=name, dtype="float32", autocast=False)
        self.supports_masking = True
        self.num_tags = check_count("num_tags", num_tags, minimum=2)
        self.allowed = None if allowed is None else _check_allowed(allowed, self.num_tags)
        self.dropout = check_rate("dropout", dropout)
        self.dropout_layer = dropout_layer(self.dropout, dtype="float32")
        self.tags = keras.layers.Dense(num_tags - 1, name="tags", dtype="float32")

    def build(self, representation_shape: Any) -> None:
        """Creates the weights from the shapes of the representation's entries."""
        build_layer(self.tags, None, None, _outputs_of(representation_shape)[-1])
        size = self.num_tags - 1
        for name, shape in (("transitions", (size, size)), ("start", (size,)), ("end", (size,))):
            setattr(self, name, self.add_weight(name=name, shape=shape, dtype="float32", initializer="zeros"))
        self.built = True

    def call(self, representation: Any, targets: Any = None, training: bool | None = None) -> tf.Tensor:
        """The log probabilities of each word's tag, given the tags of the words before it.

        Args:
            representation: What the encoder returns.
            targets: Tags, whole numbers `[batch, time]`, 0 where there is none.
            training: Whether dropout is active.

        Returns:
            Float32 `[batch, time, num_tags]`, with the mask of the words as its Keras mask.

        Raises:
            ValueError: There are no targets, or the representation lacks an entry.
        """
        if targets is None:
            raise ValueError(
                "`targets` of CRFTagger must be the tags, which it reads in training. Received: None. Pass "
                "`teacher_forcing=True` to `add_head`; call `generate(representation)` to predict."
            )
        chain, mask = self._chain(representation, training)
        logits, *scores = chain
        logits = crf.next_tag_logits(logits, tf.cast(targets, tf.int32) - 1, *scores[:3], mask=mask)
        logits = tf.pad(logits, [[0, 0], [0, 0], [1, 0]], constant_values=_NEVER)
        if mask is not None:
            logits._keras_mask = mask
        return logits

    def generate(self, representation: Any) -> tf.Tensor:
        """The most probable tags: int32 `[batch, time]`, 0 at absent words.

        Raises:
            ValueError: The representation lacks an entry.
        """
        self._build_for(representation)
        chain, mask = self._chain(representation)
        return crf.decode(*chain, mask=mask, allowed=self._allowed_of_words)[0] + 1

    def scores(self, representation: Any) -> tf.Tensor:
        """What metrics compare with the targets: 1 for the tags of `generate`, 0 for the others.

        Returns:
            Float32 `[batch, time, num_tags]`.

        Raises:
            ValueError: The representation lacks an entry.
        """
        return tf.one_hot(self.generate(representation), self.num_tags)

    def marginals(self, representation: Any) -> tf.Tensor:
        """The probability of each tag at each word, float32 `[batch, time, num_tags]`; 0 at absent words.

        Raises:
            ValueError: The representation lacks an entry.
        """
        self._build_for(representation)
        chain, mask = self._chain(representation)
        return tf.pad(crf.marginals(*chain, mask=mask, allowed=self._allowed_of_words), [[0, 0], [0, 0], [1, 0]])

    def target_problems(self, targets: tf.Tensor, present: tf.Tensor) -> list[tuple[tf.Tensor, str, str]]:
        """Rules for targets that the head can learn; a trainer checks them where it reads the data.

        Args:
            targets: Tags, `[batch, time]`.
            present: Which of the targets count, bool `[batch, time]`.

        Returns:
            A tuple for each rule: which tags break the rule, bool `[batch, time]`; what the targets must do; the remedy.
        """
        remedy = "Number the tags from 1, and mark what has none by 0, which the loss `SequenceCrossentropy()` leaves out."
        return [(tf.logical_and(present, tf.equal(targets, 0)), "hold no tag 0, which stands for no tag", remedy)]

    @property
    def _allowed_of_words(self) -> crf.Allowed | None:
        """The part of `allowed` for the tags from 1."""
        if self.allowed is None:
            return None
        transitions, start, end = self.allowed
        return crf.Allowed(transitions[1:, 1:], start[1:], end[1:])

    def _build_for(self, representation: Any) -> None:
        if not self.built:
            shapes = tf.nest.map_structure(lambda tensor: tensor.shape, representation)
            with tf.name_scope(self.name), tf.init_scope():
                self.build(shapes)

    def _chain(self, representation: Any, training: bool | None = False) -> tuple[tuple[tf.Tensor, ...], Any]:
        """The scores of the words and of neighboring tags, and the mask, or None."""
        outputs = _outputs_of(representation)
        mask = representation.get("mask") if isinstance(representation, dict) else None
        mask = getattr(outputs, "_keras_mask", None) if mask is None else mask
        logits = self.tags(self.dropout_layer(tf.cast(outputs, tf.float32), training=training))
        weights = (tf.convert_to_tensor(each) for each in (self.transitions, self.start, self.end))
        return (logits, *weights), None if mask is None else tf.cast(mask, tf.bool)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "num_tags": self.num_tags,
            "allowed": None if self.allowed is None else [each.tolist() for each in self.allowed],
            "dropout": self.dropout,
            "name": self.name,
        }


def _outputs_of(representation: Any) -> Any:
    """The outputs of a representation, or their shape in one of its shapes.

    Raises:
        ValueError: `representation` is a dict without `outputs`.
    """
    if not isinstance(representation, dict):
        return representation
    check_representation("representation", representation, ("outputs",), "CRFTagger")
    return representation["outputs"]


def _check_allowed(allowed: Any, num_tags: int) -> crf.Allowed:
    """Returns `allowed` as NumPy arrays.

    Raises:
        ValueError: `allowed` is not for `num_tags` tags.
    """
    found = crf.Allowed(*(np.asarray(each, bool) for each in allowed))
    shapes = [each.shape for each in found]
    if shapes != [(num_tags, num_tags), (num_tags,), (num_tags,)]:
        raise ValueError(
            f"`allowed` must be for the {num_tags} tags of the head, tag 0 included. Received: arrays of shapes {shapes}. "
            "Pass `crf.allowed_transitions(names)` with a name for each tag, the first of them empty."
        )
    return found
