"""Training on files, evaluation, and prediction with a trained model."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console

from examples._cluster import check_files
from examples._command_line import InputError
from examples._replicas import Batches, Worker, batches_of_files, worker_of
from examples.seq2seq_price import report
from examples.seq2seq_price.answers import PriceModel, load_model
from examples.seq2seq_price.batches import (
    Examples,
    evaluation_batches,
    statistics_of,
    training_batches,
    vocabularies,
)
from examples.seq2seq_price.command import CHECKPOINT, check_output
from examples.seq2seq_price.data import Data, classes, load_data
from examples.seq2seq_price.model import NO_LABEL, Sizes, compile_trainer
from examples.seq2seq_price.slots import have_slots, slot_f1
from multihead import balancing, callbacks, plots

SHORT, LEAST_COPIED = 10, 0.2
"""No attention where nine tenths of the sources have at most so many tokens; no copying where at most this fraction of the
targets' words stands in the sources."""
JUDGED = 5000
"""Training rows whose metrics are shown, at most: decoding all of a large file takes longer than an epoch."""


def build_model(options: Namespace, data: Data, *, heads: Sequence[str] | None = None) -> PriceModel:
    """An untrained model with vocabularies from the training rows, and all heads of the data or some of them.

    Where the options leave it open, attention and copying are chosen by the texts.
    """
    train = data.splits["train"]
    words, found = vocabularies(train), data.statistics
    others = [statistics_of(rows).longest_target for split, rows in data.splits.items() if split != "train"]
    longest = max(2 * found.longest_target, *others)  # what is compared with must fit, too
    sizes = Sizes(len(words[0]) + 2, len(words[1]) + 2, longest + 1)
    given = {name: vars(options)[name] for name in ("units", "embedding", "layers", "cell", "attention", "dropout")}
    if options.attention == "auto":
        given["attention"] = "luong" if found.long_source > SHORT else None
    copies = given["attention"] in ("luong", "bahdanau") and options.train is not None and found.copied > LEAST_COPIED
    sizes = replace(sizes, **given, copy_ids=found.longest_source if copies else None)
    return PriceModel(sizes, words, [*data.heads.values()], heads=heads or ("reply", *data.heads))


def describe(sizes: Sizes, data: Data) -> str:
    """What of the model was chosen by the texts, and by what."""
    found = data.statistics
    attention = f"attention {sizes.attention}" if sizes.attention else "no attention"
    copies = "words can be copied" if sizes.copy_ids is not None else "no words are copied"
    return (
        f"{attention}: a tenth of the sources have more than {found.long_source} tokens; {copies}: "
        f"{found.copied:.0%} of the words in `{data.columns['target']}` stand in the source"
    )


def best_weights(patience: int, heads: Iterable[str]) -> callbacks.HeadEarlyStopping:
    """Stops so many epochs after that with the lowest validation loss, and restores its weights."""
    return callbacks.HeadEarlyStopping(dict.fromkeys(heads, "val_loss"), patience=patience, idle=False)


def train_model(
    options: Namespace, model: PriceModel, data: Data, worker: Worker | None = None
) -> tuple[dict[str, Any], keras.callbacks.History]:
    """Trains a model, created in the scope of the worker's strategy.

    With `--patience`, it has the weights of the epoch with the lowest loss afterwards. Otherwise it has those of the last
    one, in which the learning rate has fallen to 0: the loss of a head may rise long before its accuracy falls, and the
    others still learn.

    Returns:
        Training statistics, and Keras's history.

    Raises:
        InputError: The files or the options of a run that is resumed do not fit.
    """
    worker = worker or Worker()
    rows = len(data.splits["train"].texts)
    batches, steps = _training_batches(options, model, data, worker)
    with worker.strategy.scope():
        compile_model(options, model, steps)
    validation = _batches_for(model, data.splits["dev"], options.batch_size)
    fed = worker.fed(model.with_own_targets(batches), validation, by_row=options.shard == "row")
    progress = report.Progress(report.Clock(options.epochs * steps), quiet=not worker.is_chief)
    history, trained = keras.callbacks.History(), Batches()
    best = [best_weights(options.patience, model.trainer.heads)] if options.patience else []
    # Removed at the end of training; until then, the run can be interrupted and go on.
    saver = callbacks.Checkpoint(Path(options.output) / CHECKPOINT, every=100, keep=False)
    worker.wait()
    begun = time.perf_counter()
    try:
        every = [progress, history, *best, saver, trained]
        model.trainer.fit(**fed, epochs=options.epochs, callbacks=every, shuffle=False, verbose=0)
    except ValueError as error:
        if not options.resume:
            raise
        raise InputError(f"`--resume` must have the data and the options with which the run began. {error}") from error
    except KeyboardInterrupt:
        if not history.history:
            raise
        for callback in best:
            callback.on_train_end()  # which Keras leaves out
        print("\ninterrupted: evaluating and saving the model trained so far; add --resume to continue instead")
    seconds, epochs = time.perf_counter() - begun, len(history.epoch)
    statistics = {
        "epochs": epochs,
        # Without any finite validation loss, the weights are those of the last epoch.
        "weights_of_epoch": next((each.best_score_epoch + 1 for each in best if each.best_score_epoch is not None), epochs),
        "seconds": seconds,
        "examples_per_second": epochs * rows / seconds,
        "updates": int(model.trainer.update_count),
    }
    if not worker.is_alone:
        own = worker.rows_of(batches, whole=options.shard == "row") * trained.number() / steps
        statistics["workers"] = [{"examples_per_second": speed} for speed in worker.of_each(own / seconds)]
    return statistics, history


def compile_model(options: Namespace, model: PriceModel, steps: int) -> None:
    """Compiles a model's trainer as the options say, for so many batches per epoch."""
    given = {name: vars(options)[name] for name in ("learning_rate", "weight_decay", "micro_batches")}
    balancer = balancing.get(options.balancer) or balancing.NormFloor(1.0)
    compile_trainer(model.trainer, options.epochs * steps, balancer=balancer, **given)


def _training_batches(options: Namespace, model: PriceModel, data: Data, worker: Worker) -> tuple[tf.data.Dataset, int]:
    """The training batches, of all workers or of this one's files, and the number of steps per epoch."""
    train, seed = data.splits["train"], options.seed
    if options.shard == "row":
        return training_batches(train, model.vectorizers, options.batch_size, seed=seed)
    number, ends = len(data.files), np.cumsum(data.files)
    check_files(number, worker.number, options.batch_size)

    def of_file(file: int) -> tuple[tf.data.Dataset, int]:
        rows = slice(ends[file] - data.files[file], ends[file])
        labels = {head: values[rows] for head, values in train.labels.items()}
        size = options.batch_size * (file + 1) // number - options.batch_size * file // number
        examples = Examples(train.texts[rows], train.targets[rows], labels)
        return training_batches(examples, model.vectorizers, size, seed=seed + file)

    return batches_of_files(worker, number, of_file)


def evaluate(
    model: PriceModel, examples: Examples, answers: Mapping[str, Sequence[Any]], *, batch_size: int
) -> dict[str, float]:
    """The metrics of a model's heads on rows, to which these are its `answers`."""
    logs = model.trainer.evaluate(_batches_for(model, examples, batch_size), return_dict=True, verbose=0)
    found: dict[str, float] = {}
    for head, column in model.columns.items():
        found |= column.metrics(examples.labels[head], answers[head])
    if "reply" in answers:
        replied = [pair for pair in zip(examples.targets, answers["reply"]) if pair[0].strip()]
        found |= {"reply_exact": exact(replied)} if replied else {}
        if replied and have_slots(wanted for wanted, _ in replied):
            found["reply_slot_f1"] = slot_f1(replied)
        found["reply_token_accuracy"] = float(logs["reply_token_accuracy"])
    found |= {name: float(value) for name, value in logs.items() if name.endswith("loss")}
    return {**found, "rows": len(examples.texts), "labelled_rows": int(np.sum(examples.labels["price"] != NO_LABEL))}


def exact(replies: Sequence[tuple[str, str]]) -> float:
    """The fraction of pairs of a reference and a reply that are equal, up to the amount of white space."""
    return float(np.mean([wanted.split() == received.split() for wanted, received in replies]))


def train(options: Namespace) -> None:
    """Trains, evaluates and writes all results to `--output`.

    Raises:
        InputError: The data, an option, the cluster or the folder cannot be used.
    """
    worker = worker_of(options)  # before anything else of TensorFlow is used
    tell = print if worker.is_chief else lambda line: None
    try:
        balancing.get(options.balancer)
    except ValueError as error:
        raise InputError(str(error).replace("`balancer`", "`--balancer`", 1)) from error
    if check_output(options):
        tell(f"the run in {options.output} has finished")
        return
    make_folders(options, "output", "export")
    keras.utils.set_random_seed(options.seed)
    data = load_data(options, tell)
    with worker.strategy.scope():
        model = build_model(options, data)
    sizes = ", ".join(f"{len(examples.texts)} {split}" for split, examples in data.splits.items())
    tell(f"{sizes} rows; {'; '.join(map(str, data.heads.values()))}")
    for line in (*classes(data), describe(model.sizes, data)):
        tell(line)
    if worker.number > 1:
        print(worker, flush=True)
    statistics, history = train_model(options, model, data, worker)
    if "workers" in statistics:
        speed = statistics["workers"][worker.index]["examples_per_second"]
        print(f"worker {worker.index + 1} of {worker.number}: {speed:.1f} examples per second", flush=True)
    with worker.folder(Path(options.output)) as own:  # all workers read what is saved; only the chief's files are used
        model.save(own, data.columns)
    if worker.is_chief:
        if not worker.is_alone:  # what follows is done on one device, by the chief alone
            model, _ = load_model(Path(options.output))
            compile_model(options, model, 1)
        _report(options, data, model, statistics, history)
    worker.leave()


def _report(
    options: Namespace, data: Data, model: PriceModel, statistics: dict[str, Any], history: keras.callbacks.History
) -> None:
    """Exports and evaluates a trained model, and writes all results."""
    export(options, model)
    plots.all_of(history, options.output)
    judged = {**data.splits, "train": data.splits["train"].at_most(JUDGED)}
    answers = {split: model.answer(examples.texts, beam_width=options.beam) for split, examples in judged.items()}
    splits = {
        split: evaluate(model, examples, answers[split], batch_size=options.batch_size) for split, examples in judged.items()
    }
    metrics = {"training": statistics, "options": vars(options), "splits": splits, "history": history.history}
    text = json.dumps(metrics, indent=1, ensure_ascii=False, default=float)
    (Path(options.output) / "metrics.json").write_text(text + "\n", encoding="utf-8")
    Console().print(report.metrics_table(splits))
    last, held_out = [*data.splits.items()][-1]
    print(f"replies to rows of {last}, wrong ones first:")
    print(report.replies([*zip(held_out.texts, held_out.targets, answers[last]["reply"])], model.copied))
    epoch = f"weights of epoch {statistics['weights_of_epoch']} of {statistics['epochs']}"
    print(f"trained for {statistics['seconds']:.0f} s, {epoch}; written to {options.output}")


def use(options: Namespace) -> None:
    """Predicts for the texts in `--predict` and exports the heads to `--export`, with the model in `--load`.

    Raises:
        InputError: The folder contains no model, or that of `--export` is not writable.
    """
    model, columns = load_model(Path(options.load))
    make_folders(options, "export")
    export(options, model)
    if options.predict is None:
        return
    answers = model.answer(options.predict, beam_width=options.beam)
    for place, asked in enumerate(options.predict):
        print(f"{columns['source']}: {asked}\n{columns['target']}: {answers['reply'][place]}")
        for head, column in model.columns.items():
            print(f"{column.column}: {column.describe(answers[head][place], asked)}")


def make_folders(options: Namespace, *names: str) -> None:
    """Creates the folders that options name, if necessary."""
    for name, path in ((name, vars(options)[name]) for name in names if vars(options)[name] is not None):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"`--{name}` must be a writable folder. Received: {path!r}: {error.strerror}. Choose another."
            ) from error


def export(options: Namespace, model: PriceModel) -> None:
    """Writes the heads to `--export`, if it is given."""
    if options.export is not None:
        model.export(Path(options.export), beam_width=options.beam)
        print(f"heads exported to {options.export}")


def _batches_for(model: PriceModel, examples: Examples, batch_size: int) -> tf.data.Dataset:
    return model.with_own_targets(evaluation_batches(examples, model.vectorizers, batch_size))
