"""How do you fine-tune a pretrained encoder with several heads: frozen, then slower than the heads, or with LoRA?

A backbone of KerasHub reads the workshop's orders. One head predicts the price range from its pooled output, one a tag for
every token from its sequence output. Without --preset, nothing is downloaded: a small backbone is built from a configuration
and pretrained on the texts of orders, with a head that predicts masked tokens. Four ways to train it are compared. Then a
head is added to the trained model while the old heads' data are replayed. All models are saved, loaded and exported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples._backbones import (
    NO_LABEL,
    POOLED,
    SEQUENCE,
    Tokens,
    backbone_from_config,
    encoder_of,
    mask_tokens,
    vocabulary_of,
    what_keras_it_needs,
)
from examples._command_line import InputError, whole
from examples._orders import BAND_EDGES, TAGS, draw_rows
from examples._shared import Session, run_program
from multihead import LayerwiseDecay, MultiHeadTrainer, Stages, mix_datasets

LENGTH, BATCH = 32, 50
CLASSES = "sparse_categorical_crossentropy"
Arrays = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


class Way(NamedTuple):
    """A way to train a pretrained encoder.

    Attributes:
        encoder_rate: The encoder's factor of the learning rate, from the number of updates.
        rate: A factor of the learning rate of everything.
        pretrained: Whether it begins with the pretrained weights.
        rank: Rank of the adapters, 0 for none.
    """

    encoder_rate: Callable[[int], Any]
    rate: float = 1.0
    pretrained: bool = True
    rank: int = 0


WAYS = {
    "from scratch": Way(lambda updates: 1.0, pretrained=False),
    "frozen": Way(lambda updates: 0.0, rate=3.0),
    "LoRA": Way(lambda updates: 1.0, rate=3.0, rank=8),
    "frozen, then unfrozen": Way(lambda updates: Stages({0: 0, max(1, updates // 5): LayerwiseDecay(0.8)})),
}
"""With few trained parameters the rate is larger. The rates were fixed before any result was seen, and are not tuned."""


class Start(NamedTuple):
    """What all ways begin with.

    Attributes:
        make: Creates a backbone, with pretrained weights or without.
        tokens: Converts orders to its inputs.
        rate: The learning rate.
    """

    make: Callable[[bool], Any]
    tokens: Tokens
    rate: float


def from_preset(preset: str, rate: float | None) -> Start:
    """A published backbone with its tokenizer, or one in a folder that `save_to_preset` has written.

    Raises:
        InputError: There is none, or it cannot be loaded.
    """
    import keras_hub

    def make(pretrained: bool) -> Any:
        return keras_hub.models.Backbone.from_preset(preset, load_weights=pretrained)

    try:
        tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(preset)
        inputs = encoder_of(make(False)).model.input
    except InputError:
        raise
    except Exception as error:  # of the network, of a file, or of KerasHub
        raise InputError(
            f"`--preset` must be a preset of KerasHub for text, or a folder with one. Received: {preset!r}: {error}"
        ) from error
    return Start(make, Tokens(tokenizer, LENGTH, inputs), 1e-4 if rate is None else rate)


def from_config(
    name: str, rows: Sequence[dict[str, str]], updates: int, rate: float | None, *, size: int, seed: int
) -> tuple[Start, float]:
    """A small backbone, pretrained on the texts of orders with one head that predicts masked tokens.

    Args:
        name: The backbone's name.
        rows: The orders.
        updates: Updates of pretraining.
        rate: The learning rate; 3e-3 if None.
        size: Size of a token's representation.
        seed: Seed of the masks.

    Returns:
        The start, and the accuracy at masked tokens over the last tenth of the updates.
    """
    import keras_hub

    tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=vocabulary_of([row["text"] for row in rows]))
    vocabulary = tokenizer.vocabulary_size()
    encoder = encoder_of(backbone_from_config(name, vocabulary, LENGTH, size=size))
    start = Start(
        lambda pretrained: with_weights(backbone_from_config(name, vocabulary, LENGTH, size=size), pretrained and weights),
        Tokens(tokenizer, LENGTH, encoder.model.input),
        3e-3 if rate is None else rate,
    )
    trainer = MultiHeadTrainer(encoder.model)
    layers = keras.layers.Dense(size, "gelu"), keras.layers.LayerNormalization()
    words = keras.Sequential([*layers, keras.layers.Dense(vocabulary, "softmax")])
    trainer.add_head("words", words, CLASSES, metrics=["accuracy"], ignore_label=NO_LABEL, reads=SEQUENCE)
    trainer.compile(decaying(start.rate, updates), telemetry=None)
    copies = -(-updates * BATCH // len(rows))  # each with other masks
    inputs, labels = mask_tokens(start.tokens, start.tokens(rows)[0], copies, seed)
    batches = tf.data.Dataset.from_tensor_slices((inputs, {"words": labels})).batch(BATCH, drop_remainder=True)
    last = max(1, updates // 10)
    if updates > last:
        trainer.fit(batches.take(updates - last), verbose=0)
    history = trainer.fit(batches.skip(updates - last).take(last), verbose=0)
    weights = encoder.backbone.get_weights()
    return start, history.history["words_accuracy"][-1]


def with_weights(backbone: Any, weights: Any) -> Any:
    """The backbone with some weights, if there are any."""
    if weights:
        backbone.set_weights(weights)
    return backbone


# --------------------------------------------------------------------------------------------------------- fine-tuning


def decaying(rate: float, updates: int) -> Any:
    """AdamW whose learning rate rises for a tenth of the updates and then falls to zero."""
    warm = max(1, updates // 10)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, max(1, updates - warm), warmup_target=rate, warmup_steps=warm)
    return keras.optimizers.AdamW(schedule, weight_decay=0.01)


def head(units: int, activation: str) -> Any:
    """A layer after dropout."""
    return keras.Sequential([keras.layers.Dropout(0.1), keras.layers.Dense(units, activation)])


def finetune(way: Way, start: Start, train: Arrays, updates: int) -> MultiHeadTrainer:
    """Trains a head on each output of the backbone, and the encoder in one of the ways."""
    encoder = encoder_of(start.make(way.pretrained))
    if way.rank:
        encoder.backbone.enable_lora(way.rank)
    trainer = MultiHeadTrainer(encoder.model)
    trainer.add_head("price", head(len(BAND_EDGES) + 1, "softmax"), CLASSES, metrics=["accuracy"], reads=POOLED)
    tags = {"reads": SEQUENCE, "ignore_label": NO_LABEL}
    trainer.add_head("tags", head(len(TAGS), "softmax"), CLASSES, metrics=["accuracy"], **tags)
    optimizer = decaying(way.rate * start.rate, updates)
    trainer.compile(optimizer, encoder_learning_rate_multiplier=way.encoder_rate(updates), telemetry=None)
    inputs, targets = train
    targets = {name: targets[name] for name in ("price", "tags")}
    trainer.fit(endless(inputs, targets), steps_per_epoch=updates, verbose=0)
    return trainer


def endless(inputs: Any, targets: Any) -> tf.data.Dataset:
    """Shuffled batches without end."""
    orders = tf.data.Dataset.from_tensor_slices((inputs, targets))
    return orders.shuffle(len(orders), seed=0).repeat().batch(BATCH)


def add_haste(trainer: MultiHeadTrainer, start: Start, train: Arrays, updates: int) -> None:
    """Adds a head to a trained model: is the order urgent? The old heads' data are replayed, so that they do not forget.

    The encoder is frozen at first: the new head learns to use it as it is.
    """
    trainer.add_head("haste", head(1, "sigmoid"), "binary_crossentropy", reads=POOLED)
    done = int(trainer.update_count)
    stages = Stages({0: 0, done + max(1, updates // 3): LayerwiseDecay(0.8, top=0.3)})
    trainer.compile(decaying(start.rate, updates), encoder_learning_rate_multiplier=stages, telemetry=None)
    inputs, targets = train
    batches = {}
    for name in trainer.heads:
        of_head = tf.data.Dataset.from_tensor_slices((inputs, targets[name]))
        batches[name] = of_head.shuffle(2000, seed=0).batch(BATCH)
    mixed = mix_datasets(batches, weights={"price": 1, "tags": 1, "haste": 2}).repeat()
    trainer.fit(mixed, steps_per_epoch=updates, verbose=0)


# ------------------------------------------------------------------------------------------------------------- results


def figures(trainer: MultiHeadTrainer, held_out: Arrays) -> dict[str, float]:
    """Accuracy of each head on held-out orders; of the tags, over tokens that are not special."""
    inputs, targets = held_out
    found = trainer.predict(inputs, batch_size=len(targets["price"]), verbose=0)
    right = {"price": found["price"].argmax(-1) == targets["price"]}
    right["tags"] = (found["tags"].argmax(-1) == targets["tags"])[targets["tags"] != NO_LABEL]
    if "haste" in found:
        right["haste"] = (found["haste"] > 0.5) == (targets["haste"] > 0.5)
    return {name: float(np.mean(each)) for name, each in right.items()}


def trained_parameters(trainer: MultiHeadTrainer, way: Way) -> int:
    """How many of the encoder's parameters are trained."""
    frozen = way.encoder_rate(1) == 0
    return 0 if frozen else sum(int(np.prod(each.shape)) for each in trainer.encoder.trainable_variables)


def kept(
    trainer: MultiHeadTrainer, inputs: dict[str, np.ndarray], folder: Path, *, adapted: bool = False
) -> tuple[float, float]:
    """Saves and loads a trainer, and exports it.

    Args:
        trainer: A trained one.
        inputs: The inputs of some orders.
        folder: The folder to write to.
        adapted: Whether it has adapters. Keras saves their sum with the kernels, so that a loaded encoder has none, and the
            optimizer's slots do not fit it: it is loaded without its optimizer.

    Returns:
        The largest differences of the predictions after loading, and of the export's.
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
    options = session.options
    orders, texts, before, updates = (60, 60, 2, 2) if session.quick else (options.orders, 5000, 600, 200)
    rows = draw_rows(max(orders, texts), held_out=False, seed=session.seed)
    if options.preset is None:
        size = 16 if session.quick else 64
        start, accuracy = from_config(options.backbone, rows, before, options.rate, size=size, seed=session.seed)
        session.say(f"{options.backbone}, pretrained on {len(rows)} texts: {accuracy:.2f} of the masked tokens are right.")
    else:
        start = from_preset(options.preset, options.rate)
    train = start.tokens(rows[:orders])
    held_out = start.tokens(draw_rows(60 if session.quick else 500, held_out=True, seed=session.seed))
    few = {name: values[:8] for name, values in held_out[0].items()}
    table, differences = [], []
    with session.progress("ways to train, and a new head", len(WAYS) + 1) as advance:
        for name, way in WAYS.items():
            keras.utils.set_random_seed(session.seed)
            trainer = finetune(way, start, train, updates)
            table.append([name, f"{trained_parameters(trainer, way):,}", *_rounded(figures(trainer, held_out))])
            differences.append(kept(trainer, few, session.folder, adapted=way.rank > 0))
            advance()
        add_haste(trainer, start, train, updates)
        table.append(["the last, with a new head", "", *_rounded(figures(trainer, held_out))])
        differences.append(kept(trainer, few, session.folder))
        advance()
    columns = ["encoder", "its trained parameters", "price", "tags", "haste"]
    title = f"{orders} orders, {updates} updates: accuracy on held-out orders, of the tags per token"
    session.table(title, columns, [[*row, ""][: len(columns)] for row in table])
    loaded, exported = np.max(differences, axis=0)
    session.say(f"Largest difference of predictions: {loaded:.0e} after loading, {exported:.0e} from the export.")


def _rounded(found: dict[str, float]) -> list[str]:
    return [f"{each:.3f}" for each in found.values()]


OPTIONS: dict[str, dict[str, Any]] = {
    "--preset": {"metavar": "NAME", "help": "a published backbone, such as bert_tiny_en_uncased, or a folder with one"},
    "--backbone": {"metavar": "NAME", "default": "Bert", "help": "the backbone to build without --preset (default: Bert)"},
    "--orders": {"metavar": "N", "type": whole(50), "default": 500, "help": "orders with labels (default: 500)"},
    "--rate": {"metavar": "R", "type": float, "help": "learning rate (default: 0.003, with --preset 0.0001)"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    needs = ("rich", "keras_hub")
    options: dict[str, Any] = {"own": OPTIONS, "refuse": what_keras_it_needs}
    return run_program("pretrained_encoder", __doc__, body, arguments, needs=needs, **options)


if __name__ == "__main__":
    sys.exit(main())
