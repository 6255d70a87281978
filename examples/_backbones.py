"""KerasHub backbones as encoders of the workshop's orders: built from a configuration, and orders as their inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

from examples._command_line import InputError
from examples._orders import BAND_EDGES, TAGS

NO_LABEL, LENGTH = -1, 32
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
POOLED, SEQUENCE = "pooled_output", "sequence_output"


def what_keras_it_needs() -> str | None:
    """A sentence if this is not Keras 3, which KerasHub needs."""
    if int(keras.__version__.split(".")[0]) >= 3:
        return None
    return (
        f"needs Keras 3, as KerasHub does. Received: Keras {keras.__version__}. Run it in an environment with TensorFlow "
        "2.16 or newer: pip install -e '.[examples,hub]'"
    )


def backbone_from_config(name: str, vocabulary: int, length: int, *, size: int = 64, layers: int = 2) -> Any:
    """A small backbone with random weights: `keras_hub.models.{name}Backbone`, with tokens of some size.

    Raises:
        InputError: There is no such backbone, or it needs more than these numbers.
    """
    import keras_hub

    kind = getattr(keras_hub.models, f"{name}Backbone", None)
    takes = {} if kind is None else inspect.signature(kind.__init__).parameters
    if "vocabulary_size" not in takes:
        raise InputError(
            f"`--backbone` must be a backbone of KerasHub that reads tokens. Received: {name!r}. Choose, for example, Bert, "
            "Roberta or DistilBert."
        )
    heads = 4
    numbers = {
        **{"vocabulary_size": vocabulary, "max_sequence_length": length, "num_layers": layers, "dropout": 0.1},
        **{"hidden_dim": size, "hidden_size": size, "embedding_dim": size, "intermediate_dim": 2 * size},
        **dict.fromkeys(("num_heads", "num_attention_heads", "num_query_heads", "num_key_value_heads"), heads),
        **dict.fromkeys(("head_dim", "head_size"), size // heads),
    }
    try:
        return kind(**{option: number for option, number in numbers.items() if option in takes})
    except TypeError as error:
        raise InputError(
            f"`--backbone` must be one that a size and a number of layers describe. Received: {name!r}: {error}. Choose "
            "another, or pass a saved one with --preset."
        ) from error


def encoder_of(backbone: Any) -> Any:
    """The model of a backbone's layers that returns `POOLED` `[batch, size]` and `SEQUENCE` `[batch, time, size]`.

    It is the backbone itself if this returns both; otherwise the mean of the tokens is the pooled output. Of a backbone with
    an encoder and a decoder, it is the encoder.

    Raises:
        InputError: The backbone reads something else than tokens.
    """
    inputs, outputs = backbone.input, backbone.output
    if isinstance(inputs, dict) and isinstance(outputs, dict) and {POOLED, SEQUENCE} <= set(outputs):
        return backbone
    inputs = {name: each for name, each in inputs.items() if not name.startswith("decoder_")}
    ids = inputs.get("token_ids", inputs.get("encoder_token_ids"))
    if ids is None or set(inputs) - set(_blank(inputs)):
        raise InputError(
            f"`--preset` must name a backbone that reads tokens. Received: a {type(backbone).__name__}, which reads "
            f"{', '.join(sorted(inputs))}. Choose one for text, such as bert_tiny_en_uncased."
        )
    sequence = outputs.get("encoder_sequence_output", outputs.get(SEQUENCE)) if isinstance(outputs, dict) else outputs
    mask = inputs.get("padding_mask", inputs.get("encoder_padding_mask"))
    mask = keras.ops.not_equal(ids, 0) if mask is None else mask
    pooled = keras.layers.GlobalAveragePooling1D(name="pooled")(sequence, mask=mask)
    return keras.Model(inputs, {POOLED: pooled, SEQUENCE: sequence}, name=f"{backbone.name}_encoder")


def _blank(names: Any) -> dict[str, str]:
    """What each input of a backbone is, by its name."""
    kinds = ("token_ids", "padding_mask", "segment_ids")
    return {name: kind for name in names for kind in kinds if name in (kind, f"encoder_{kind}")}


def vocabulary_of(texts: Sequence[str]) -> list[str]:
    """Tokens for a `BertTokenizer`: special ones, characters and pieces of one, then the words of texts by frequency."""
    counts: dict[str, int] = {}
    for text in texts:
        for word in text.replace(",", " , ").replace(":", " : ").split():
            counts[word] = counts.get(word, 0) + 1
    characters = sorted({character for word in counts for character in word})
    known = [*SPECIAL, *characters, *(f"##{each}" for each in characters)]
    frequent = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))
    return [*known, *(word for word in frequent if word not in known)]


class Tokens:
    """Converts orders to the inputs of a backbone, with these names and `length` tokens at most, and to labels."""

    def __init__(self, tokenizer: Any, length: int, inputs: Any) -> None:
        self._tokenizer, self._kinds, self.length = tokenizer, _blank(inputs), length
        self.size: int = tokenizer.vocabulary_size()
        self._known: dict[str, list[int]] = {}
        self.start = self._id("cls_token_id", "start_token_id")
        self.end = self._id("sep_token_id", "end_token_id")
        self.padding = self._id("pad_token_id") or 0
        self.mask = self._id("mask_token_id")

    def _id(self, *names: str) -> int | None:
        return next((found for name in names if (found := getattr(self._tokenizer, name, None)) is not None), None)

    def _read(self, words: Sequence[str]) -> None:
        """Splits words into tokens. Within a text they have a space before them, which some tokenizers keep."""
        new = sorted(set(words) - set(self._known))
        for word, ids in zip(new, self._tokenizer([f" {word}" for word in new]) if new else ()):
            self._known[word] = [int(each) for each in np.asarray(ids).ravel()]

    def __call__(self, rows: Sequence[dict[str, str]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The inputs by name, `[rows, length]` each, and the targets by head.

        `price` is the number of the price's range, `[rows]`; `tags` the number of the tag of each token's word, `[rows,
        length]`, `NO_LABEL` at special tokens, `other` at punctuation after a word; `haste` is 1 for an express order.
        """
        self._read([piece for row in rows for word in row["text"].split(" ") for piece in _pieces(word) if piece])
        ids = np.full([len(rows), self.length], self.padding, "int32")
        tags = np.full([len(rows), self.length], NO_LABEL, "int32")
        mask = np.zeros([len(rows), self.length], "int32")
        for row, order in enumerate(rows):
            found, own = self._tagged(order)
            ids[row, : len(found)], tags[row, : len(own)], mask[row, : len(found)] = found, own, 1
        blank = {"token_ids": ids, "padding_mask": mask, "segment_ids": np.zeros_like(ids)}
        prices = np.digitize([float(order["price"]) for order in rows], BAND_EDGES).astype("int32")
        haste = np.array([[float(order["order"].endswith("express"))] for order in rows], "float32")
        return {name: blank[kind] for name, kind in self._kinds.items()}, {"price": prices, "tags": tags, "haste": haste}

    def _tagged(self, order: dict[str, str]) -> tuple[list[int], list[int]]:
        """The ids of an order's tokens and the numbers of their tags."""
        found, own = ([], []) if self.start is None else ([self.start], [NO_LABEL])
        room = self.length - (self.end is not None)
        for word, tag in zip(order["text"].split(" "), order["tags"].split(" ")):
            for piece, number in zip(_pieces(word), (TAGS.index(tag), TAGS.index("other"))):
                ids = self._known[piece] if piece else []
                found, own = found + ids, own + [number] * len(ids)
        found, own = found[:room], own[:room]
        return (found, own) if self.end is None else ([*found, self.end], [*own, NO_LABEL])


def _pieces(word: str) -> tuple[str, str]:
    """A word, and the punctuation after it."""
    bare = word.rstrip(",:")
    return bare, word[len(bare) :]


def mask_tokens(tokens: Tokens, inputs: dict[str, np.ndarray], copies: int, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Copies of inputs, each with other tokens masked, and the masked tokens as labels, `[copies * rows, length]`.

    Of the tokens that are not special, 15 % are to be predicted, as in BERT: four fifths of them are replaced by the mask, a
    tenth by a random token, a tenth stay. The label of other tokens is `NO_LABEL`.
    """
    generator = np.random.default_rng(seed)
    inputs = {name: np.concatenate([values] * copies) for name, values in inputs.items()}
    (name,) = (name for name, kind in tokens._kinds.items() if kind == "token_ids")
    ids = inputs[name]
    special = [each for each in (tokens.start, tokens.end, tokens.padding) if each is not None]
    chosen = (generator.random(ids.shape) < 0.15) & ~np.isin(ids, special)
    lot = generator.random(ids.shape)
    masked = np.where(chosen & (lot < 0.8), tokens.mask, ids)
    masked = np.where(chosen & (lot > 0.9), generator.integers(len(SPECIAL), tokens.size, ids.shape), masked)
    return {**inputs, name: masked.astype("int32")}, np.where(chosen, ids, NO_LABEL)


class Start(NamedTuple):
    """What all ways begin with: backbones with pretrained weights or without, orders as their inputs, the learning rate."""

    make: Callable[[bool], Any]
    tokens: Tokens
    rate: float


def from_preset(preset: str) -> Start:
    """A published backbone with its tokenizer, or one in a folder that `save_to_preset` has written.

    Raises:
        InputError: There is none, or it cannot be loaded.
    """
    import keras_hub

    try:
        tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(preset)
        make = partial(keras_hub.models.Backbone.from_preset, preset)
        inputs = encoder_of(make(load_weights=False)).input
    except InputError:
        raise
    except Exception as error:  # of the network, of a file, or of KerasHub
        raise InputError(
            f"`--preset` must be a preset of KerasHub for text, or a folder with one. Received: {preset!r}: {error}"
        ) from error
    return Start(lambda pretrained: make(load_weights=pretrained), Tokens(tokenizer, LENGTH, inputs), 1e-4)
