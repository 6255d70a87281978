"""Training on files, evaluation, and prediction with a trained model."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
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
from examples.seq2seq_price.answers import Answers, PriceModel, load_model
from examples.seq2seq_price.batches import (
    Examples,
    evaluation_batches,
    longest,
    standardize_source,
    standardize_target,
    training_batches,
    vocabularies,
)
from examples.seq2seq_price.command import CHECKPOINT, check_output
from examples.seq2seq_price.data import Data, load_data
from examples.seq2seq_price.model import NO_LABEL, Sizes, compile_trainer
from multihead import balancing, callbacks


def build_model(options: Namespace, data: Data, *, heads: Sequence[str] | None = None) -> PriceModel:
    """An untrained model with vocabularies from the training rows, and all heads of the data or some of them.

    Raises:
        InputError: A training text or target is longer than `--max-tokens`.
    """
    train = data.splits["train"]
    lengths = longest(train.texts, standardize_source), longest(train.targets, standardize_target)
    for side, length in zip(("source", "target"), lengths):
        if length > options.max_tokens:
            raise InputError(
                f"The column `{data.columns[side]}` must contain at most {options.max_tokens} tokens per row. Received: "
                f"{length}. Shorten the text, or allow more with --max-tokens."
            )
    words = vocabularies(train)
    sizes = Sizes(len(words[0]) + 2, len(words[1]) + 2, 2 * lengths[1] + 1)
    given = {name: vars(options)[name] for name in ("units", "embedding", "layers", "cell", "attention", "dropout")}
    columns = [*data.heads.values()]
    return PriceModel(replace(sizes, **given), words, columns, heads=heads or ("reply", *data.heads))


def best_weights(options: Namespace, heads: Iterable[str]) -> callbacks.HeadEarlyStopping:
    """Restores the weights of the epoch with the lowest validation loss, and stops `--patience` epochs after it."""
    total = dict.fromkeys(heads, "val_loss")
    return callbacks.HeadEarlyStopping(total, patience=options.patience or options.epochs, idle=False)


def train_model(
    options: Namespace, model: PriceModel, data: Data, worker: Worker | None = None
) -> tuple[dict[str, Any], keras.callbacks.History]:
    """Trains a model, created in the scope of the worker's strategy, and restores the epoch with the lowest loss.

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
    history, trained, best = keras.callbacks.History(), Batches(), best_weights(options, model.trainer.heads)
    # Removed at the end of training; until then, the run can be interrupted and go on.
    saver = callbacks.Checkpoint(Path(options.output) / CHECKPOINT, every=100, keep=False)
    worker.wait()
    begun = time.perf_counter()
    try:
        every = [progress, history, best, saver, trained]
        model.trainer.fit(**fed, epochs=options.epochs, callbacks=every, shuffle=False, verbose=0)
    except ValueError as error:
        if not options.resume:
            raise
        raise InputError(f"`--resume` must have the data and the options with which the run began. {error}") from error
    except KeyboardInterrupt:
        if not history.history:
            raise
        best.on_train_end()  # which Keras leaves out
        print("\ninterrupted: evaluating and saving the model trained so far; add --resume to continue instead")
    seconds, epochs = time.perf_counter() - begun, len(history.epoch)
    statistics = {
        "epochs": epochs,
        # Without any finite validation loss, the weights are those of the last epoch.
        "best_epoch": epochs if best.best_score_epoch is None else best.best_score_epoch + 1,
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
    compile_trainer(model.trainer, options.epochs * steps, balancer=balancing.get(options.balancer), **given)


def _training_batches(options: Namespace, model: PriceModel, data: Data, worker: Worker) -> tuple[tf.data.Dataset, int]:
    """The training batches, of all workers or of this one's files, and the number of steps per epoch."""
    train, seed = data.splits["train"], options.seed
    if options.shard == "row":
        return training_batches(train, model.vectorizers, options.batch_size, seed=seed)
    number, ends = len(data.files), np.cumsum(data.files)
    check_files(number, worker.number, options.batch_size)

    def of_file(file: int) -> tuple[tf.data.Dataset, int]:
        rows = slice(ends[file] - data.files[file], ends[file])
        additional = {head: values[rows] for head, values in train.additional.items()}
        size = options.batch_size * (file + 1) // number - options.batch_size * file // number
        examples = Examples(train.texts[rows], train.targets[rows], train.labels[rows], additional)
        return training_batches(examples, model.vectorizers, size, seed=seed + file)

    return batches_of_files(worker, number, of_file)


def evaluate(
    model: PriceModel, examples: Examples, *, batch_size: int, beam_width: int = 1
) -> tuple[dict[str, float], Answers]:
    """The metrics of a model's heads on the given rows, and its predictions."""
    logs = model.trainer.evaluate(_batches_for(model, examples, batch_size), return_dict=True, verbose=0)
    answers = model.answer(examples.texts, beam_width=beam_width)
    found: dict[str, float] = {}
    for head, column in model.columns.items():
        found |= column.metrics(examples.by_head[head], answers.by_head[head])
    if answers.replies is not None:
        replied = [pair for pair in zip(examples.targets, answers.replies) if pair[0].strip()]
        found |= {"reply_exact": report.exact(*zip(*replied))} if replied else {}
        found["reply_token_accuracy"] = float(logs["reply_token_accuracy"])
    found |= {name: float(value) for name, value in logs.items() if name.endswith("loss")}
    return {**found, "rows": len(examples.texts), "labelled_rows": int(np.sum(examples.labels != NO_LABEL))}, answers


def train(options: Namespace, console: Console) -> None:
    """Trains, evaluates and writes all results to `--output`.

    Raises:
        InputError: The data, an option, the cluster or the folder cannot be used.
    """
    worker = worker_of(options)  # before anything else of TensorFlow is used
    console = console if worker.is_chief else Console(quiet=True)
    check_balancer(options.balancer)
    if check_output(options):
        console.print(f"the run in {options.output} has finished", highlight=False, soft_wrap=True)
        return
    folder = made("--output", options.output)
    if options.export is not None:
        made("--export", options.export)
    keras.utils.set_random_seed(options.seed)
    data = load_data(options, lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
    with worker.strategy.scope():
        model = build_model(options, data)
    sizes = ", ".join(f"{len(examples.texts)} {split}" for split, examples in data.splits.items())
    heads = "; ".join([f"{len(data.ranges.names)} price ranges", *map(str, data.additional)])
    console.print(f"{sizes} rows; {heads}", highlight=False)
    if worker.number > 1:
        print(worker, flush=True)
    statistics, history = train_model(options, model, data, worker)
    if "workers" in statistics:
        speed = statistics["workers"][worker.index]["examples_per_second"]
        print(f"worker {worker.index + 1} of {worker.number}: {speed:.1f} examples per second", flush=True)
    with worker.folder(folder) as own:  # all workers read what is saved; only the chief's files are used
        model.save(own, data.columns)
    if worker.is_chief:
        if not worker.is_alone:  # what follows is done on one device, by the chief alone
            model, _ = load_model(folder)
            compile_model(options, model, 1)
        _report(options, console, folder, data, model, (statistics, history))
    worker.leave()


def _report(
    options: Namespace, console: Console, folder: Path, data: Data, model: PriceModel, trained: tuple[Any, Any]
) -> None:
    """Exports and evaluates a trained model, and writes all results."""
    statistics, history = trained
    export(options, model, console)
    report.write_history(folder, history)
    splits: dict[str, dict[str, float]] = {}
    for split, examples in data.splits.items():
        splits[split], answers = evaluate(model, examples, batch_size=options.batch_size, beam_width=options.beam)
    report.write_samples(folder / "samples.txt", examples, answers, data.ranges.names)  # of the last split
    metrics = {"training": statistics, "options": vars(options), "splits": splits}
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(report.metrics_table(splits))
    best = f"best at epoch {statistics['best_epoch']} of {statistics['epochs']}"
    line = f"trained for {statistics['seconds']:.0f} s, {best}; written to {folder}"
    console.print(line, highlight=False, soft_wrap=True)


def use(options: Namespace, console: Console) -> None:
    """Predicts for the texts in `--predict` and exports the heads to `--export`, with the model in `--load`.

    Raises:
        InputError: The folder contains no model, or that of `--export` is not writable.
    """
    model, columns = load_model(Path(options.load))
    if options.export is not None:
        made("--export", options.export)
        export(options, model, console)
    if options.predict is None:
        return
    answers = model.answer(options.predict, beam_width=options.beam)
    for place, asked in enumerate(options.predict):
        lines = [(columns["source"], asked), (columns["target"], answers.replies[place])]
        for head, column in model.columns.items():
            lines.append((column.column, column.describe(answers.by_head[head][place], asked)))
        for name, answer in lines:
            console.print(f"{name}: {answer}", highlight=False, markup=False, soft_wrap=True)


def made(option: str, path: str) -> Path:
    """The folder that an option names; it is created if necessary."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"`{option}` must be a writable folder. Received: {path!r}: {error.strerror}. Choose another."
        ) from error
    return Path(path)


def export(options: Namespace, model: PriceModel, console: Console) -> None:
    """Writes the heads to `--export`, if it is given."""
    if options.export is not None:
        model.export(Path(options.export), beam_width=options.beam)
        console.print(f"heads exported to {options.export}", highlight=False, soft_wrap=True)


def _batches_for(model: PriceModel, examples: Examples, batch_size: int) -> tf.data.Dataset:
    return model.with_own_targets(evaluation_batches(examples, model.vectorizers, batch_size))


def check_balancer(name: str | None) -> None:
    """Checks a name that `--balancer` was given."""
    try:
        balancing.get(name)
    except ValueError as error:
        raise InputError(str(error).replace("`balancer`", "`--balancer`", 1)) from error
