"""How do you fine-tune a pretrained encoder with several heads: frozen, then slower than the heads, or with LoRA?

A backbone of KerasHub reads the workshop's orders. One head predicts the price range from its pooled output, one a tag for
every token from its sequence output. Without --preset, nothing is downloaded: a small backbone is built from a configuration
and pretrained on the texts of orders, with a head that predicts masked tokens. Four ways to train it are compared. Then a
head is added to the trained model while the old heads' data are replayed. All models are saved, loaded and exported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples import _backbones
from examples._backbones import (
    LENGTH,
    NO_LABEL,
    POOLED,
    SEQUENCE,
    Start,
    Tokens,
    encoder_of,
    from_preset,
    what_keras_it_needs,
)
from examples._command_line import InputError, whole
from examples._orders import BAND_EDGES, TAGS, draw_rows
from examples._shared import Session, run_program
from multihead import LayerwiseDecay, MultiHeadTrainer, Stages, mix_datasets

BATCH = 50
CLASSES = "sparse_categorical_crossentropy"
Arrays = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


WAYS: dict[str, dict[str, Any]] = {
    "from scratch": {"pretrained": False},
    "frozen": {"encoder_rate": lambda updates: 0.0, "factor": 3.0},
    "LoRA": {"factor": 3.0, "rank": 8},
    "frozen, then unfrozen": {"encoder_rate": lambda updates: Stages({0: 0, max(1, updates // 5): LayerwiseDecay(0.8)})},
}
"""The factors of all rates, and of the encoder's by the number of updates, were fixed before any result was seen."""


def from_config(name: str, rows: Sequence[dict[str, str]], updates: int, *, size: int, seed: int) -> tuple[Start, float]:
    """A small backbone, pretrained on the texts of orders with a head for masked tokens; and its accuracy in the end."""
    import keras_hub

    tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=_backbones.vocabulary_of([row["text"] for row in rows]))
    vocabulary = tokenizer.vocabulary_size()

    def make(pretrained: bool) -> Any:
        backbone = _backbones.backbone_from_config(name, vocabulary, LENGTH, size=size)
        if pretrained:
            backbone.set_weights(weights)
        return backbone

    backbone = make(False)
    encoder = encoder_of(backbone)
    start = Start(make, Tokens(tokenizer, LENGTH, encoder.input), 3e-3)
    trainer = MultiHeadTrainer(encoder)
    layers = keras.layers.Dense(size, "gelu"), keras.layers.LayerNormalization()
    words = keras.Sequential([*layers, keras.layers.Dense(vocabulary, "softmax")])
    trainer.add_head("words", words, CLASSES, metrics=["accuracy"], ignore_label=NO_LABEL, reads=SEQUENCE)
    trainer.compile(decaying(start.rate, updates), telemetry=None)
    copies = -(-updates * BATCH // len(rows))  # each with other masks
    inputs, labels = _backbones.mask_tokens(start.tokens, start.tokens(rows)[0], copies, seed)
    batches = tf.data.Dataset.from_tensor_slices((inputs, {"words": labels})).batch(BATCH, drop_remainder=True)
    last = max(1, updates // 10)
    trainer.fit(batches.take(updates - last), verbose=0)
    history = trainer.fit(batches.skip(updates - last).take(last), verbose=0)
    weights = backbone.get_weights()
    return start, history.history["words_accuracy"][-1]


def decaying(rate: float, updates: int) -> Any:
    """AdamW whose learning rate rises for a tenth of the updates and then falls to zero."""
    warm = max(1, updates // 10)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, max(1, updates - warm), warmup_target=rate, warmup_steps=warm)
    return keras.optimizers.AdamW(schedule, weight_decay=0.01)


def head(units: int, activation: str) -> Any:
    """A layer after dropout."""
    return keras.Sequential([keras.layers.Dropout(0.1), keras.layers.Dense(units, activation)])


def finetune(way: dict[str, Any], start: Start, train: Arrays, updates: int) -> MultiHeadTrainer:
    """Trains a head on each output of a backbone in one of `WAYS`."""
    backbone = start.make(way.get("pretrained", True))
    encoder = encoder_of(backbone)
    if "rank" in way:
        backbone.enable_lora(way["rank"])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("price", head(len(BAND_EDGES) + 1, "softmax"), CLASSES, reads=POOLED)
    trainer.add_head("tags", head(len(TAGS), "softmax"), CLASSES, reads=SEQUENCE, ignore_label=NO_LABEL)
    optimizer, of_encoder = decaying(way.get("factor", 1.0) * start.rate, updates), way.get("encoder_rate", lambda _: 1.0)
    trainer.compile(optimizer, encoder_learning_rate_multiplier=of_encoder(updates), telemetry=None)
    inputs, targets = train
    orders = tf.data.Dataset.from_tensor_slices((inputs, {name: targets[name] for name in trainer.heads}))
    trainer.fit(orders.shuffle(len(orders), seed=0).repeat().batch(BATCH), steps_per_epoch=updates, verbose=0)
    return trainer


def add_haste(trainer: MultiHeadTrainer, start: Start, train: Arrays, updates: int) -> None:
    """Adds a head, at first on a frozen encoder: is the order urgent? The old heads' data are replayed."""
    trainer.add_head("haste", head(1, "sigmoid"), "binary_crossentropy", reads=POOLED)
    done = int(trainer.update_count)
    stages = Stages({0: 0, done + max(1, updates // 3): LayerwiseDecay(0.8, top=0.3)})
    trainer.compile(decaying(start.rate, updates), encoder_learning_rate_multiplier=stages, telemetry=None)
    inputs, targets = train
    slices = {name: tf.data.Dataset.from_tensor_slices((inputs, targets[name])) for name in trainer.heads}
    batches = {name: of_head.shuffle(2000, seed=0).batch(BATCH) for name, of_head in slices.items()}
    mixed = mix_datasets(batches, weights={"price": 1, "tags": 1, "haste": 2}).repeat()
    trainer.fit(mixed, steps_per_epoch=updates, verbose=0)


def accuracies(trainer: MultiHeadTrainer, held_out: Arrays) -> dict[str, float]:
    """Accuracy of each head on held-out orders; of the tags, over tokens that are not special."""
    inputs, targets = held_out
    found = trainer.predict(inputs, batch_size=len(targets["price"]), verbose=0)
    right = {"price": found["price"].argmax(-1) == targets["price"]}
    right["tags"] = (found["tags"].argmax(-1) == targets["tags"])[targets["tags"] != NO_LABEL]
    if "haste" in found:
        right["haste"] = (found["haste"] > 0.5) == (targets["haste"] > 0.5)
    return {name: float(np.mean(each)) for name, each in right.items()}


def kept(trainer: MultiHeadTrainer, inputs: Any, folder: Path, *, adapted: bool = False) -> tuple[float, ...]:
    """The largest differences of predictions after saving and loading a trainer, and of its export's.

    Keras saves the sum of adapters and kernels, so that a loaded encoder has no adapters, and the optimizer's slots do not
    fit it: an adapted one is loaded without its optimizer.
    """
    predicted = trainer.predict(inputs, verbose=0)
    trainer.save(folder / "trainer.keras")
    loaded = keras.models.load_model(folder / "trainer.keras", compile=not adapted).predict(inputs, verbose=0)
    trainer.export(folder / "export")
    serve = tf.saved_model.load(str(folder / "export")).signatures["serving_default"]
    served = serve(**{name: tf.constant(values) for name, values in inputs.items()})
    return tuple(max(float(np.abs(each[name] - predicted[name]).max()) for name in predicted) for each in (loaded, served))


def body(session: Session) -> None:
    """Pretrains or loads a backbone, trains it in every way, adds a head, and saves all of it."""
    if problem := what_keras_it_needs():
        raise InputError(problem)
    options = session.options
    orders, texts, before, updates = (60, 60, 2, 2) if session.quick else (options.orders, 5000, 600, 200)
    rows = draw_rows(max(orders, texts), held_out=False, seed=session.seed)
    if options.preset is None:
        size = 16 if session.quick else 64
        start, accuracy = from_config(options.backbone, rows, before, size=size, seed=session.seed)
        session.say(f"{options.backbone}, pretrained on {len(rows)} texts: {accuracy:.2f} of the masked tokens are right.")
    else:
        start = from_preset(options.preset)
    train = start.tokens(rows[:orders])
    held_out = start.tokens(draw_rows(60 if session.quick else 500, held_out=True, seed=session.seed))
    few = {name: values[:8] for name, values in held_out[0].items()}
    table, differences = [], []

    def show(name: str, trainer: MultiHeadTrainer, *, adapted: bool = False) -> None:
        table.append([name, *(f"{each:.3f}" for each in accuracies(trainer, held_out).values()), ""][:4])
        differences.append(kept(trainer, few, session.folder, adapted=adapted))

    with session.progress("ways to train", len(WAYS)) as advance:
        for name, way in WAYS.items():
            keras.utils.set_random_seed(session.seed)
            trainer = finetune(way, start, train, updates)
            show(name, trainer, adapted="rank" in way)
            advance()
    add_haste(trainer, start, train, updates)
    show("the last, with a new head", trainer)
    title = f"{orders} orders, {updates} updates: accuracy on held-out orders, of the tags per token"
    session.table(title, ["encoder", "price", "tags", "haste"], table)
    loaded, exported = np.max(differences, axis=0)
    session.say(f"Largest difference of predictions: {loaded:.0e} after loading, {exported:.0e} from the export.")


OPTIONS: dict[str, dict[str, Any]] = {
    "--preset": {"metavar": "NAME", "help": "a published backbone, such as bert_tiny_en_uncased, or a folder with one"},
    "--backbone": {"metavar": "NAME", "default": "Bert", "help": "the backbone to build without --preset (default: Bert)"},
    "--orders": {"metavar": "N", "type": whole(50), "default": 500, "help": "orders with labels (default: 500)"},
}
NEEDS = ("rich",) if what_keras_it_needs() else ("rich", "keras_hub")
main = partial(run_program, "pretrained_encoder", __doc__, body, needs=NEEDS, own=OPTIONS)

if __name__ == "__main__":
    sys.exit(main())
