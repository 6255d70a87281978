"""The encoder that the heads share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from ._checks import check_choice, check_count, check_id, check_ids, check_rate, check_representation, check_tokens
from ._ids import mask_of_tokens, with_a_step
from ._recurrent import CELLS, build_layer, dropout_layer, hidden_of, recurrent_layer, state_of


@keras.saving.register_keras_serializable(package="models")
class Seq2SeqEncoder(keras.layers.Layer):
    """Encodes token ids with an embedding and recurrent layers.

    Padding is skipped wherever it stands in a row; `outputs` and `mask` keep the places of the tokens. (On a GPU, the
    recurrent layers of Keras 3 accept padding at the end only, and raise an error otherwise.) A row that contains only
    padding counts as one token, so that every row has a last step. States are those after each row's last token; the result
    of a row does not depend on its padding.

    For a decoder that copies, the input is a dict of `tokens` and `copy_ids`, their ids in the vocabulary of the targets,
    which become part of the representation.

    Args:
        vocabulary_size: Number of token ids, padding included.
        embedding_size: Size of a token's vector.
        units: Size of a layer's state in one direction.
        cell: `"lstm"` or `"gru"`.
        num_layers: Number of recurrent layers.
        bidirectional: Whether each layer also reads from the end; its outputs and states are then concatenated, forward
            direction first, and twice as large.
        dropout: Fraction of each layer's inputs that is dropped in training.
        padding_id: The id of padding.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> encoder = Seq2SeqEncoder(100, embedding_size=8, units=16)
        >>> encoder(tf.constant([[5, 7, 0], [4, 0, 0]]))["final"].shape
        TensorShape([2, 16])
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        units: int,
        *,
        cell: str = "lstm",
        num_layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        padding_id: int = 0,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.embedding_size = check_count("embedding_size", embedding_size)
        self.units = check_count("units", units)
        self.cell = check_choice("cell", cell, CELLS)
        self.num_layers = check_count("num_layers", num_layers)
        self.bidirectional = bool(bidirectional)
        self.dropout = check_rate("dropout", dropout)
        self.padding_id = check_id("padding_id", padding_id, vocabulary_size)
        policy = self.dtype_policy
        self.dropout_layer = dropout_layer(self.dropout, dtype=policy)
        self.embedding = keras.layers.Embedding(vocabulary_size, embedding_size, name="embedding", dtype=policy)
        self.forward_layers = [
            recurrent_layer(cell, units, name=f"forward_{index}", dtype=policy) for index in range(num_layers)
        ]
        self.backward_layers = [
            recurrent_layer(cell, units, go_backwards=True, name=f"backward_{index}", dtype=policy)
            for index in range(num_layers if bidirectional else 0)
        ]

    def build(self, tokens_shape: Any) -> None:
        """Creates the weights; their shapes do not depend on the input."""
        build_layer(self.embedding, None, None)
        width = self.units * (2 if self.bidirectional else 1)
        for layers in (self.forward_layers, self.backward_layers):
            for index, layer in enumerate(layers):
                build_layer(layer, None, None, self.embedding_size if index == 0 else width)
        self.built = True

    def call(self, tokens: Any, training: bool | None = None) -> dict[str, Any]:
        """Encodes a batch of token ids.

        Args:
            tokens: Integer ids, `[batch, time]`, or a dict of two such tensors, `tokens` and `copy_ids`.
            training: Whether dropout is active.

        Returns:
            A dict of `outputs`, float `[batch, time, width]`, zero at padding; `state`, a tuple over layers of the
            final state, a tensor for a GRU and the pair (hidden, carry) for an LSTM, each `[batch, width]`; `final`,
            `[batch, width]`, the last layer's hidden state; `mask`, bool `[batch, time]`, True at tokens; and `copy_ids`,
            if the input has them. The width is `units`, twice that if bidirectional. For a batch of time 0 the results have
            time 1.

        Raises:
            ValueError: If the tokens or copy ids are not matrices of integers, or a token is out of range.
        """
        copy_ids: dict[str, tf.Tensor] = {}
        if isinstance(tokens, Mapping):
            check_representation("tokens", tokens, ("tokens", "copy_ids"), type(self).__name__, "a dict of two tensors")
            copy_ids["copy_ids"] = with_a_step(check_ids("copy_ids", tokens["copy_ids"]), self.padding_id)
            tokens = tokens["tokens"]
        tokens = with_a_step(check_tokens(tokens, self.vocabulary_size), self.padding_id)
        mask = mask_of_tokens(tokens, self.padding_id)
        outputs = self.embedding(tokens)
        states = []
        for index, forward in enumerate(self.forward_layers):
            outputs = self.dropout_layer(outputs, training=training)
            inputs = outputs
            outputs, *state = forward(inputs, mask=mask)
            if self.bidirectional:
                reverse, *reverse_state = self.backward_layers[index](inputs, mask=mask)
                outputs = tf.concat([outputs, tf.reverse(reverse, [1])], axis=-1)
                state = [tf.concat(pair, axis=-1) for pair in zip(state, reverse_state)]
            states.append(state_of(state))
        outputs *= tf.cast(mask[:, :, tf.newaxis], outputs.dtype)
        return {"outputs": outputs, "state": tuple(states), "final": hidden_of(states[-1]), "mask": mask, **copy_ids}

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        """None: the mask is part of the result."""
        return None

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "embedding_size": self.embedding_size,
            "units": self.units,
            "cell": self.cell,
            "num_layers": self.num_layers,
            "bidirectional": self.bidirectional,
            "dropout": self.dropout,
            "padding_id": self.padding_id,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }
