"""What does a customer want, and which words say it? Intents and slots from one encoder, with a conditional random field.

A bidirectional encoder reads the words of requests and their letters; one head classifies the intent, the other finds the
slots. Without --train, it makes its own requests, about orders at a furniture workshop. It prints slot F1 (as conlleval
counts), intent accuracy and sentence accuracy (the intent and all tags are right) on the validation data, and exports the
model of the first seed, which takes texts, for `python -m examples.serve`.
"""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples._command_line import shown, whole
from examples._orders import draw_requests
from examples._requests import OPTIONS as FILES
from examples._requests import Rows, columns, read_files
from examples._shared import Session, run_program
from examples._spans import SpanF1
from multihead import Head, MultiHeadTrainer, clipping, losses
from multihead.models import Classifier, CRFTagger, crf

BATCH, RATE, DROPOUT = 32, 2e-3, 0.5
WORD, LETTER, FILTERS, UNITS = 100, 32, 64, 150
LETTERS = 18  # of a word; later ones are not read
NO_LABEL = -1
PARTS = 20  # of a training run, for the progress bar


class Reader:
    """Converts texts `[batch]` to ids of words, int64 `[batch, time]`, and of their letters, `[batch, time, LETTERS]`."""

    def __init__(self, texts: Sequence[str]) -> None:
        said = self.words_of(texts).flat_values
        counts = collections.Counter(word.decode() for word in self.bare(said).numpy())
        self.word = keras.layers.StringLookup(vocabulary=[word for word, _ in counts.most_common()], mask_token="")
        letters = sorted({*tf.strings.reduce_join(said).numpy().decode()})
        self.letter = keras.layers.StringLookup(vocabulary=letters, mask_token="")
        self.first_rare = 2 + sum(count > 1 for count in counts.values())  # ids of words that were seen once begin here

    @staticmethod
    def words_of(texts: Any) -> tf.RaggedTensor:
        """What stands between spaces, in lower case, with 0 for each digit."""
        return tf.strings.split(tf.strings.regex_replace(tf.strings.lower(texts, encoding="utf-8"), r"\d", "0"))

    @staticmethod
    def bare(words: tf.Tensor) -> tf.Tensor:
        """Words without the punctuation after them, if they are more than that; their letters keep it."""
        return tf.strings.regex_replace(words, r"^(.*[^.,:;!?])[.,:;!?]+$", r"\1")

    def __call__(self, texts: Any) -> dict[str, tf.Tensor]:
        words = self.words_of(texts).to_tensor()
        words = tf.concat([words, tf.fill([tf.shape(words)[0], tf.cast(tf.shape(words)[1] < 1, tf.int32)], "")], axis=1)
        letters = tf.strings.unicode_split(tf.reshape(words, [-1]), "UTF-8").to_tensor(shape=[None, LETTERS])
        letters = tf.reshape(letters, [tf.shape(words)[0], tf.shape(words)[1], LETTERS])
        return {"words": self.word(self.bare(words)), "letters": self.letter(letters)}


class Encoder(keras.layers.Layer):
    """Two bidirectional layers over vectors of words and their letters; in training, half of the rare words are unknown."""

    def __init__(self, reader: Reader, units: int = UNITS) -> None:
        super().__init__()
        self.first_rare = reader.first_rare
        self.word = keras.layers.Embedding(reader.word.vocabulary_size(), WORD)
        self.letter = keras.layers.Embedding(reader.letter.vocabulary_size(), LETTER)
        self.convolution = keras.layers.Conv2D(FILTERS, (1, 3), padding="same", activation="tanh")
        self.dropout = keras.layers.Dropout(DROPOUT)
        cells = [keras.layers.GRU(units, return_sequences=True, return_state=True) for _ in range(2)]
        self.recurrent = [keras.layers.Bidirectional(cell) for cell in cells]

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> dict[str, Any]:
        words = inputs["words"]
        mask = tf.concat([tf.ones_like(words[:, :1]), words[:, 1:]], axis=1) > 0  # a text without words has one
        if training:
            is_left_out = tf.logical_and(words >= self.first_rare, tf.random.uniform(tf.shape(words)) < 0.5)
            words = tf.where(is_left_out, tf.ones_like(words), words)
        letters = tf.reduce_max(self.convolution(self.letter(inputs["letters"])), axis=2)
        outputs = tf.concat([self.word(words), letters], axis=2)
        for layer in self.recurrent:
            outputs, *states = layer(self.dropout(outputs, training=training), mask=mask)
        outputs *= tf.cast(mask[:, :, tf.newaxis], outputs.dtype)
        return {"outputs": outputs, "final": tf.concat(states, axis=1), "mask": mask}


class Model:
    """The trainer, and what converts rows to its inputs and targets; of the other rows only the names of labels are read."""

    def __init__(self, rows: Rows, others: Rows, units: int = UNITS) -> None:
        self.reader = Reader([row["text"] for row in rows])
        intents = sorted({row["intent"] for row in rows + others} - {""})
        self.intents = [*intents, *[" "] * (2 - len(intents))]  # two at least: without labels they are not trained
        tags = {tag for row in rows + others for tag in row["tags"].split()} - {"O"}
        self.tags = ["", "O", *sorted(tags, key=lambda tag: (tag[2:], tag))]
        self.tag = keras.layers.StringLookup(vocabulary=self.tags[1:], mask_token="", num_oov_indices=0)
        classifier = Classifier(len(self.intents), pool=True, dropout=DROPOUT)
        tagger = CRFTagger(len(self.tags), allowed=crf.allowed_transitions(self.tags), dropout=DROPOUT)
        heads = {
            "intent": Head(classifier, "sparse_categorical_crossentropy", ignore_label=NO_LABEL),
            "slots": Head(tagger, losses.SequenceCrossentropy(), teacher_forcing=True),
        }
        self.trainer = MultiHeadTrainer(Encoder(self.reader, units), heads=heads)

    def data(self, rows: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Inputs and targets of a batch of rows, by column."""
        inputs = self.reader(rows["text"])
        tags = self.tag(tf.strings.split(rows["tags"]).to_tensor())
        tags = tf.pad(tags, [[0, 0], [0, tf.shape(inputs["words"])[1] - tf.shape(tags)[1]]])
        is_intent = tf.equal(rows["intent"][:, tf.newaxis], self.intents)
        intent = tf.reduce_max(tf.where(is_intent, tf.range(len(self.intents)), NO_LABEL), axis=1)
        return inputs, {"slots": tags, "intent": intent}

    def batches(self, rows: Rows, seed: int, size: int = BATCH) -> tf.data.Dataset:
        """Batches of texts of similar length, without end."""
        lengths = [len(row["text"].split()) for row in rows]
        edges = sorted({int(edge) + 1 for edge in np.quantile(lengths, [0.2, 0.4, 0.6, 0.8, 0.95])})
        data = tf.data.Dataset.from_tensor_slices((np.array(lengths, "int32"), columns(rows))).shuffle(len(rows), seed=seed)
        data = data.repeat().bucket_by_sequence_length(lambda length, row: length, edges, [size] * (len(edges) + 1))
        return data.map(lambda length, row: self.data(row), num_parallel_calls=tf.data.AUTOTUNE).prefetch(8)

    def fit(self, rows: Rows, updates: int, seed: int, advance: Callable[[], None]) -> None:
        """Trains with a rate that decays to zero; calls `advance` `PARTS` times."""
        steps = -(-updates // PARTS)
        adam = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(RATE, PARTS * steps))
        self.trainer.compile(adam, clip=clipping.ByGlobalNorm(5.0), telemetry=None)
        tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: advance())
        self.trainer.fit(self.batches(rows, seed), epochs=PARTS, steps_per_epoch=steps, callbacks=[tell], verbose=0)

    def scores(self, rows: Rows) -> list[float]:
        """Slot F1, intent accuracy, and sentence accuracy over sentences with all labels; NaN without slots or labels."""
        inputs, targets = self.data(columns(rows))
        found = self.trainer.predict(inputs, batch_size=256, verbose=0)
        tags, intents = targets["slots"].numpy(), targets["intent"].numpy()
        f1 = SpanF1(self.tags)
        f1.update_state(tags, tf.one_hot(found["slots"], len(self.tags)))
        is_right = found["intent"].argmax(axis=1) == intents
        are_right = np.all((tags == found["slots"]) | (tags == 0), axis=1) & is_right
        has_intent, has_tags = intents != NO_LABEL, np.any(tags != 0, axis=1)
        parts = (is_right[has_intent], are_right[has_intent & has_tags])
        of_slots = float(f1.result()) if np.any(tags > 1) else float("nan")
        return [of_slots, *(float(np.mean(part)) if len(part) else float("nan") for part in parts)]

    def export(self, folder: Path) -> None:
        """Writes a SavedModel that takes texts and returns `intent`, and `slots`, a tag for each word between spaces."""
        steps = {
            "intent": lambda probabilities: tf.gather(self.intents, tf.argmax(probabilities, axis=1)),
            "slots": lambda ids: tf.gather(self.tags, ids),
        }
        self.trainer.export(folder, preprocess=self.reader, postprocess=steps)


def body(session: Session) -> None:
    """Reads or makes rows, trains with each seed, and exports the first model."""
    options = session.options
    files = read_files(options, session.say)
    sizes = {False: 60, True: 60} if session.quick else {False: 5000, True: 1000}
    train, dev = files or (draw_requests(size, held_out=is_held_out, seed=0) for is_held_out, size in sizes.items())
    updates = 20 if session.quick else options.updates or (8000 if files else 800)
    table = []
    for seed in range(session.seed, session.seed + options.seeds):
        started = time.monotonic()
        keras.utils.set_random_seed(seed)
        model = Model(train, dev)
        with session.progress(f"seed {seed}", PARTS) as advance:
            model.fit(train, updates, seed, advance)
        table.append([*model.scores(dev), time.monotonic() - started])
        session.say(f"seed {seed}: " + ", ".join(f"{name} {shown(value, '.4f')}" for name, value in zip(COLUMNS, table[-1])))
        if seed == session.seed:
            model.export(session.folder / "export" / "request")
    found = [("mean", np.mean(table, axis=0)), ("deviation", np.std(table, axis=0, ddof=len(table) > 1))]
    rows = [[name, *(shown(each, ".4f") for each in values)] for name, values in found]
    session.say(f"wrote {session.folder / 'export'}")
    title = f"{len(train)} requests to train on, {len(dev)} not, {updates} updates, seeds: {len(table)}"
    session.table(title, ["", *COLUMNS], rows[: len(table)])


COLUMNS = ("slot F1", "intent accuracy", "sentence accuracy", "seconds")
OPTIONS: dict[str, dict[str, Any]] = {
    **FILES,
    "--seeds": {"type": whole(1), "default": 1, "metavar": "N", "help": "number of seeds, from --seed on (default: 1)"},
    "--updates": {"type": whole(1), "metavar": "N", "help": "updates to train for (default: 800; of files, 8000)"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    return run_program("intents", __doc__, body, arguments, needs=("rich",), own=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
