"""The model with its texts: what it answers to texts, and how it is saved, loaded and exported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from examples._command_line import InputError
from examples.seq2seq_price import model
from examples.seq2seq_price.batches import Vectorizers
from examples.seq2seq_price.columns import Column, from_json, to_json
from examples.seq2seq_price.command import SETTINGS_FILE
from multihead import MultiHeadTrainer

WEIGHTS_FILE = "model.weights.h5"
PREDICTION_ROWS = 256


class PriceModel:
    """The trainer, together with the conversion of texts to ids and of predictions to texts.

    `columns` are those of the heads besides the reply; `decoder` is the module of the reply, None without it.
    """

    def __init__(
        self,
        sizes: model.Sizes,
        vocabularies: tuple[Sequence[str], Sequence[str]],
        columns: Sequence[Column],
        *,
        heads: Sequence[str] = ("reply", "price"),
    ) -> None:
        self.sizes, self.vocabularies = sizes, vocabularies
        self.vectorizers = Vectorizers(*vocabularies, sizes.copy_ids)
        self.columns = {column.head: column for column in columns if column.head in heads}
        reply = {"reply": model.reply_head(sizes)} if "reply" in heads else {}
        others = {head: column.make_head(sizes.units) for head, column in self.columns.items()}
        self.trainer = MultiHeadTrainer(model.encoder(sizes), {**reply, **others}, name="seq2seq_price")
        self.decoder = reply["reply"].module if reply else None
        self._compiled: dict[int, Any] = {}

    def with_own_targets(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """The same batches, with targets only for the heads of the model."""
        heads = list(self.trainer.heads)
        return batches.map(lambda ids, targets: (ids, {head: targets[head] for head in heads}))

    def answer(self, texts: Sequence[str], *, beam_width: int = 1) -> dict[str, list[Any]]:
        """The answers of each head to at least one text: replies, and what the columns' `predict` gives."""
        order = np.argsort([len(text.split()) for text in texts], kind="stable")
        found: dict[str, list[Any]] = {}
        if beam_width not in self._compiled:
            self._compiled[beam_width] = tf.function(
                lambda batch: self._heads(batch, beam_width), input_signature=[tf.TensorSpec([None], tf.string)]
            )
        for start in range(0, len(order), PREDICTION_ROWS):
            rows = order[start : start + PREDICTION_ROWS]
            answered = self._compiled[beam_width](tf.constant([texts[row] for row in rows], tf.string))
            for head, answers in answered.items():
                of_texts = found.setdefault(head, [None] * len(texts))
                for row, answer in zip(rows, answers.numpy()):
                    of_texts[row] = answer.decode() if head == "reply" else answer
        return found

    def _heads(self, texts: tf.Tensor, beam_width: int) -> dict[str, tf.Tensor]:
        representation = self.trainer.encoder(self.vectorizers.inputs(texts), training=False)
        answered = {}
        if self.decoder is not None:
            ids = self.decoder.generate(representation, beam_width=beam_width)
            answered["reply"] = self.vectorizers.texts(ids, texts)
        for head, column in self.columns.items():
            answered[head] = column.predict(self.trainer.heads[head].module, representation)
        return answered

    def copied(self, texts: Sequence[str]) -> list[list[str]]:
        """The words of greedy replies to texts that were copied rather than generated; none if the model does not copy."""
        if self.decoder is None or self.sizes.copy_ids is None:
            return [[] for _ in texts]
        sources = tf.constant(list(texts))
        representation = self.trainer.encoder(self.vectorizers.inputs(sources), training=False)
        ids = self.decoder.generate(representation)
        tokens, is_copied = self.vectorizers.tokens(ids, sources), self.decoder.copied(representation, ids) > 0.5
        return [[token.decode() for token in row[copied] if token] for row, copied in zip(tokens.numpy(), is_copied.numpy())]

    def export(self, folder: Path, *, beam_width: int = 1) -> None:
        """Exports each head as a TensorFlow SavedModel that runs without this repository, in a folder with the head's name.

        The input is named `inputs`, strings `[batch]`. The decoder returns `reply`; a classifier returns the `label` and
        `probability` of the most probable class; a regressor returns `number`; a tagger returns `tags`, strings
        `[batch, time]`, one per token.
        """

        def generate(representation: Any) -> tf.Tensor:
            return self.decoder.generate(representation, beam_width=beam_width, engine="native")

        if self.decoder is not None:
            options: dict[str, Any] = {"generate": generate, "postprocess": self.vectorizers.texts}
            self.trainer.export(folder / "reply", "reply", preprocess=self.vectorizers.inputs, **options)
        for head, column in self.columns.items():
            options = column.export_options(self.trainer.heads[head].module)
            self.trainer.export(folder / head, head, preprocess=self.vectorizers.inputs, **options)

    def save(self, folder: Path, columns: Mapping[str, str]) -> None:
        """Saves weights, vocabularies, settings, and the names of the `source`, `target` and `label` columns to a folder."""
        settings = {
            "sizes": asdict(self.sizes),
            "heads": list(self.trainer.heads),
            "columns": columns,
            "head_columns": [to_json(column) for column in self.columns.values()],
            "batches": self.trainer.get_build_config(),
            "vocabularies": self.vocabularies,
        }
        (folder / SETTINGS_FILE).write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")
        self.trainer.save_weights(str(folder / WEIGHTS_FILE))


def load_model(folder: Path) -> tuple[PriceModel, dict[str, str]]:
    """Loads what `PriceModel.save` saved: the model, and the names of its columns.

    Raises:
        InputError: The folder contains no model, or one that cannot be loaded.
    """
    try:
        settings: dict[str, Any] = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        columns = [from_json(saved) for saved in settings["head_columns"]]
        sizes = model.Sizes(**settings["sizes"])
        found = PriceModel(sizes, tuple(settings["vocabularies"]), columns, heads=settings["heads"])
        found.trainer.build_from_config(settings["batches"])
        found.trainer.load_weights(str(folder / WEIGHTS_FILE))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(
            f"`--load` must be the folder of a finished run. Received: {str(folder)!r}, which cannot be loaded: {error}. "
            "Train first, or correct the path."
        ) from error
    return found, settings["columns"]
