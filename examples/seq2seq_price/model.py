"""The model of the example: one encoder, a decoder for the reply and a classifier for the price range."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples.seq2seq_price import text
from examples.seq2seq_price.batches import Vectorizers
from examples.seq2seq_price.ranges import NO_LABEL, PriceRanges
from examples.seq2seq_price.tables import InputError
from multihead import MultiHeadTrainer, losses
from multihead.models import PriceClassifier, Seq2SeqDecoder, Seq2SeqEncoder

WEIGHTS_FILE = "model.weights.h5"
SETTINGS_FILE = "model.json"
PREDICTION_ROWS = 256


@dataclass(frozen=True)
class Architecture:
    """Sizes and kinds of the model's parts."""

    units: int
    embedding: int
    cell: str
    attention: str | None
    dropout: float
    maximum_length: int
    price_weight: float


class Answers(NamedTuple):
    """A model's answers to texts; None for a head that it lacks.

    Attributes:
        replies: The texts that the decoder wrote.
        probabilities: Those of the price ranges, float32 `[texts, ranges]`.
    """

    replies: list[str] | None
    probabilities: np.ndarray | None


class AttentionMap(NamedTuple):
    """Where the decoder looked while it wrote one reply.

    Attributes:
        source: The tokens that it read.
        reply: The tokens that it wrote.
        weights: How much each read token counted for each written one, float32 `[reply, source]`; rows sum to 1.
    """

    source: list[str]
    reply: list[str]
    weights: np.ndarray


class PriceModel:
    """The trainer with what turns texts into its ids and its answers into texts.

    Args:
        architecture: Sizes and kinds.
        source_vocabulary: What `text.build_vocabulary` gave for the sources.
        target_vocabulary: The same for the targets.
        ranges: The price ranges.
        heads: The heads to train, of `"reply"` and `"price"`.
    """

    def __init__(
        self,
        architecture: Architecture,
        source_vocabulary: Sequence[str],
        target_vocabulary: Sequence[str],
        ranges: PriceRanges,
        *,
        heads: Sequence[str] = ("reply", "price"),
    ) -> None:
        self.architecture = architecture
        self.vocabularies = (list(source_vocabulary), list(target_vocabulary))
        self.ranges = ranges
        self.vectorizers = Vectorizers(
            text.vectorizer(source_vocabulary, text.standardize_source),
            text.vectorizer(target_vocabulary, text.standardize_target),
        )
        self.read_target = text.TargetReader(target_vocabulary)
        source_size, target_size = (len(vocabulary) + 2 for vocabulary in self.vocabularies)
        sizes = {"embedding_size": architecture.embedding, "cell": architecture.cell, "dropout": architecture.dropout}
        encoder = Seq2SeqEncoder(source_size, units=architecture.units, bidirectional=True, **sizes)
        self.trainer = MultiHeadTrainer(encoder, name="seq2seq_price")
        self._compiled: dict[int, Any] = {}
        self.decoder = self.classifier = None
        if "reply" in heads:
            self.decoder = Seq2SeqDecoder(
                target_size,
                units=architecture.units,
                attention=architecture.attention,
                start_id=text.START_ID,
                end_id=text.END_ID,
                maximum_length=architecture.maximum_length,
                name="reply",
                **sizes,
            )
            self.trainer.add_head(
                "reply",
                self.decoder,
                losses.SequenceCrossentropy(),
                metrics=[keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
                teacher_forcing=True,
            )
        if "price" in heads:
            self.classifier = PriceClassifier(len(ranges.names), hidden_units=architecture.units, pool=True, name="price")
            self.trainer.add_head(
                "price",
                self.classifier,
                "sparse_categorical_crossentropy",
                weight=architecture.price_weight,
                metrics=["accuracy"],
                ignore_label=NO_LABEL,
            )

    def with_own_targets(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """The same batches with targets for the heads that the model has."""
        heads = list(self.trainer.heads)
        return batches.map(lambda ids, targets: (ids, {head: targets[head] for head in heads}))

    def answer(self, texts: Sequence[str], *, beam_width: int = 1) -> Answers:
        """Replies and price ranges for texts.

        Args:
            texts: At least one.
            beam_width: How many hypotheses the decoder follows.
        """
        ids = self.vectorizers.source(list(texts))
        order = np.argsort(ids.row_lengths().numpy(), kind="stable")
        replies: list[str] = [""] * len(texts)
        probabilities = np.zeros([len(texts), len(self.ranges.names)], np.float32)
        if beam_width not in self._compiled:
            self._compiled[beam_width] = tf.function(
                lambda batch: self._heads(batch, beam_width), input_signature=[tf.TensorSpec([None, None], tf.int32)]
            )
        for start in range(0, len(order), PREDICTION_ROWS):
            rows = order[start : start + PREDICTION_ROWS]
            answered = self._compiled[beam_width](tf.cast(tf.gather(ids, rows).to_tensor(), tf.int32))
            if self.decoder is not None:
                for row, reply in zip(rows, self.read_target(answered["reply"])):
                    replies[row] = reply
            if self.classifier is not None:
                probabilities[rows] = answered["price"].numpy()
        return Answers(replies if self.decoder else None, probabilities if self.classifier else None)

    def attention_maps(self, texts: Sequence[str]) -> list[AttentionMap]:
        """Maps of the greedy replies to texts; none from a model without attention.

        Args:
            texts: At least one.
        """
        if self.decoder is None or self.decoder.attention is None:
            return []
        ids = tf.cast(self.vectorizers.source(list(texts)).to_tensor(), tf.int32)
        decoded = self.decoder.decode(self.trainer.encoder(ids, training=False), return_attention=True)
        maps = []
        for place, asked in enumerate(texts):
            source = [token.decode() for token in tf.strings.split(text.standardize_source(asked)).numpy()]
            reply = self.read_target.tokens(decoded.ids[place, 0])
            weights = decoded.attention[place, 0, : len(reply), : len(source)]
            maps.append(AttentionMap(source, reply, weights.numpy()))
        return maps

    def _heads(self, ids: tf.Tensor, beam_width: int) -> dict[str, tf.Tensor]:
        representation = self.trainer.encoder(ids, training=False)
        answered = {}
        if self.decoder is not None:
            answered["reply"] = self.decoder.generate(representation, beam_width=beam_width)
        if self.classifier is not None:
            answered["price"] = self.classifier(representation, training=False)
        return answered

    def export(self, folder: Path, *, beam_width: int = 1) -> None:
        """Writes each head as a TensorFlow SavedModel, into a folder of its name, that runs without this repository.

        Texts go in by the name `inputs`, strings `[batch]`; `reply` comes out of the decoder, `label` and `probability` of
        the price range out of the classifier.

        Args:
            folder: Where to; it is made if need be.
            beam_width: How many hypotheses the decoder follows.
        """
        if self.decoder is not None:
            self.trainer.export(
                "reply",
                folder / "reply",
                preprocess=self._ids,
                generate=lambda representation: self.decoder.generate(
                    representation, beam_width=beam_width, engine="native"
                ),
                postprocess=self.read_target.read,
            )
        if self.classifier is not None:
            self.trainer.export("price", folder / "price", preprocess=self._ids, postprocess=self._likeliest)

    def _ids(self, texts: tf.Tensor) -> tf.Tensor:
        """Padded source ids, int32 `[batch, time]`, of texts `[batch]`."""
        return tf.cast(self.vectorizers.source(texts).to_tensor(), tf.int32)

    def _likeliest(self, probabilities: tf.Tensor) -> dict[str, tf.Tensor]:
        """The likeliest price range's name and probability."""
        best = tf.argmax(probabilities, axis=1)
        return {"label": tf.gather(self.ranges.names, best), "probability": tf.reduce_max(probabilities, axis=1)}

    def save(self, folder: Path, columns: dict[str, str]) -> None:
        """Writes weights, vocabularies and settings.

        Args:
            folder: Where to; it must exist.
            columns: Names of the `source`, `target` and `label` columns.
        """
        settings = {
            "architecture": asdict(self.architecture),
            "heads": list(self.trainer.heads),
            "columns": columns,
            "price_ranges": self.ranges.to_json(),
            "batches": self.trainer.get_build_config(),
            "source_vocabulary": self.vocabularies[0],
            "target_vocabulary": self.vocabularies[1],
        }
        (folder / SETTINGS_FILE).write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")
        self.trainer.save_weights(str(folder / WEIGHTS_FILE))


def load_model(folder: Path) -> tuple[PriceModel, dict[str, str]]:
    """Reads what `PriceModel.save` wrote.

    Returns:
        The model and the names of its columns.

    Raises:
        InputError: The folder holds no model, or one that cannot be read.
    """
    missing = [name for name in (SETTINGS_FILE, WEIGHTS_FILE) if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"`--load` must be the folder of a finished run. Received: {str(folder)!r}, without {', '.join(missing)}. "
            "Train first, or correct the path."
        )
    try:
        settings: dict[str, Any] = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        model = PriceModel(
            Architecture(**settings["architecture"]),
            settings["source_vocabulary"],
            settings["target_vocabulary"],
            PriceRanges.from_json(settings["price_ranges"]),
            heads=settings["heads"],
        )
        columns = settings["columns"]
        model.trainer.build_from_config(settings["batches"])
        model.trainer.load_weights(str(folder / WEIGHTS_FILE))
    except (KeyError, TypeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"`--load` must be the folder of a finished run. Received: {str(folder)!r}, which cannot be used: {reason}"
        ) from error
    return model, columns
