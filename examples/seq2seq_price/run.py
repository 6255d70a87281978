"""Training on generated orders or on files, evaluation, and prediction with a trained model."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console

from examples._cluster import check_files, files_of
from examples._command_line import InputError
from examples._orders import BAND_EDGES, draw_rows
from examples._replicas import Batches, Worker, batches_of_files, worker_of
from examples.seq2seq_price import report
from examples.seq2seq_price.batches import (
    Examples,
    build_vocabulary,
    evaluation_batches,
    longest,
    padding_share,
    standardize_source,
    standardize_target,
    training_batches,
)
from examples.seq2seq_price.columns import NO_LABEL, Column, LabelColumn, NumberColumn, TagColumn, band_names, head_names
from examples.seq2seq_price.command import CHECKPOINT, OPTIONS_FILE, check_output, check_same_options
from examples.seq2seq_price.model import Answers, Architecture, PriceModel, compile_trainer, load_model
from examples.seq2seq_price.report import ProgressBar, overlap_figures, reply_figures
from examples.seq2seq_price.rows import Dialect, read_lines, read_table
from multihead import balancing, callbacks

WORKSHOP_COLUMNS = {"source": "text", "target": "order", "label": "price"}


@dataclass(frozen=True)
class Data:
    """The data that a run trains and evaluates on.

    Attributes:
        columns: Names of the `source`, `target` and `label` columns.
        ranges: The price ranges, predefined for the workshop or fitted on the training rows; without names for no prices.
        splits: Rows by the name of their split, `train` first.
        swaps: For each column whose values are swapped, its value in every training row.
        least_in_targets: The minimum number of occurrences of a target token in the vocabulary.
        additional: The columns of additional heads.
        files: The number of training rows in each file, if there are several.
    """

    columns: dict[str, str]
    ranges: LabelColumn
    splits: dict[str, Examples]
    swaps: list[list[str]]
    least_in_targets: int = 1
    additional: Sequence[Column] = ()
    files: Sequence[int] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads with targets."""
        price = ("price",) if self.ranges.names else ()
        return ("reply", *price, *(column.head for column in self.additional))


def workshop_data(orders: int, held_out: int, seed: int) -> Data:
    """The example's generated data: `orders` orders to train on, and `held_out` more for validation."""
    tables = {
        "train": draw_rows(orders, held_out=False, seed=seed),
        "dev": draw_rows(held_out, held_out=True, seed=seed),
    }
    ranges = LabelColumn("price", WORKSHOP_COLUMNS["label"], band_names(BAND_EDGES), BAND_EDGES)
    return _as_data(tables, WORKSHOP_COLUMNS, ranges)


def load_data(options: Namespace, tell: Callable[[str], None] = lambda line: None) -> Data:
    """Generates the workshop's orders, or reads the files named in the options.

    Args:
        options: The command-line options.
        tell: Is told in a line per file what was read, how, and what was left out.

    Raises:
        InputError: A file or a column cannot be used.
    """
    if options.train is None:
        return workshop_data(options.orders, options.orders // 10, options.seed)
    paths = {split: getattr(options, split) for split in ("train", "dev", "test") if getattr(options, split) is not None}
    if len(options.train) == 2:
        return _parallel_data(paths, tell)
    label, *labels = options.label
    columns = {"source": options.source, "target": options.target, "label": label}
    tags = [] if options.tags is None else [options.tags]
    added = [*labels, *options.number, *tags]
    heads = dict(zip(added, head_names(added)))
    tables, files = {}, {}
    for split, (path,) in paths.items():
        wanted = [*columns.values(), *added, *(options.swap_column if split == "train" else ())]
        parts = [read_rows(options, file, wanted, tell) for file in files_of(path)]
        tables[split], files[split] = sum(parts, []), [len(part) for part in parts]
    cells = {column: _column(tables["train"], column) for column in [label, *added]}
    if not any(_column(tables["train"], options.target)):
        raise InputError(
            f"The column `{options.target}` must contain a target in some training row. Received: only empty cells. Choose "
            "another column with --target."
        )
    missing_is_class = options.missing == "class"
    ranges = LabelColumn.fit("price", label, cells[label], bands=options.bands, missing_is_class=missing_is_class)
    additional = [
        *(LabelColumn.fit(heads[name], name, cells[name], missing_is_class=missing_is_class) for name in labels),
        *(NumberColumn.fit(heads[name], name, cells[name]) for name in options.number),
        *(TagColumn.fit(heads[name], name, cells[name]) for name in tags),
    ]
    return replace(_as_data(tables, columns, ranges, additional, options.swap_column), files=files["train"])


def read_rows(
    options: Namespace, path: str, columns: Iterable[str], tell: Callable[[str], None] = lambda line: None
) -> list[dict[str, str]]:
    """The rows of a table that have a source text and something to learn from it.

    Args:
        options: The command-line options.
        path: The table.
        columns: The columns to read, besides those to train on.
        tell: Is told in one line what was read, how, and what was left out.

    Raises:
        InputError: The file or a column cannot be used, or no row is left.
    """
    tags = [] if options.tags is None else [options.tags]
    answers = [options.target, *options.label, *options.number, *tags]
    lines: list[str] = []
    dialect = Dialect(options.separator, options.quotes)
    rows = read_table(path, [options.source, *answers, *columns], dialect, tell=lines.append)
    asked = [row for row in rows if row[options.source]]
    is_class = options.missing == "class"  # then an empty label is an answer
    kept = [row for row in asked if is_class or any(row[name] for name in answers)]
    told = {
        f"without `{options.source}` left out": len(rows) - len(asked),
        "without anything to learn left out": len(asked) - len(kept),
        f"without `{options.target}` train the other heads only": sum(not row[options.target] for row in kept),
    }
    tell("; ".join([*lines, *(f"{number} rows {what}" for what, number in told.items() if number)]))
    if not kept:
        raise InputError(
            f"`{path}` must have rows with a text in the column `{options.source}` and something to learn from it. "
            f"Received: {len(rows)} rows without. Correct the file, or choose other columns with --source and --target."
        )
    return kept


def build_model(options: Namespace, data: Data, *, heads: Sequence[str] | None = None) -> PriceModel:
    """An untrained model with vocabularies from the training rows.

    Args:
        options: The command-line options.
        data: The data to train on.
        heads: The heads to train; by default, all with targets.

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
    architecture = Architecture(
        units=options.units,
        embedding=options.embedding,
        cell=options.cell,
        attention=None if options.attention == "none" else options.attention,
        dropout=options.dropout,
        maximum_length=2 * lengths[1] + 1,
        price_weight=options.price_weight,
        num_layers=options.layers,
        num_heads=options.attention_heads or 4,
    )
    return PriceModel(
        architecture,
        build_vocabulary(train.texts, standardize_source, least=2),
        build_vocabulary(train.targets, standardize_target, least=data.least_in_targets),
        (data.ranges, *data.additional),
        heads=data.heads if heads is None else heads,
    )


def best_weights(options: Namespace, heads: Iterable[str]) -> callbacks.HeadEarlyStopping:
    """Restores the weights of the epoch with the lowest validation loss, and stops `--patience` epochs after it."""
    # The total loss, in which `--price-weight` counts, judges all heads at once.
    total = dict.fromkeys(heads, "val_loss")
    return callbacks.HeadEarlyStopping(total, patience=options.patience or options.epochs, idle=False)


def train_model(
    options: Namespace, model: PriceModel, data: Data, console: Console, worker: Worker | None = None
) -> tuple[dict[str, Any], dict[str, Any], tf.data.Dataset]:
    """Trains a model and restores the weights of the epoch with the lowest validation loss.

    Args:
        options: The command-line options.
        model: The model, created in the scope of the worker's strategy.
        data: The data.
        console: Where progress is shown.
        worker: This process among the workers; by default, it is alone.

    Returns:
        Training statistics, Keras's history by epoch, and the training batches.

    Raises:
        InputError: The balancer, its level, the schedule or the files do not fit, or there is no run to continue.
    """
    worker = worker or Worker()
    train, dev = data.splits["train"], data.splits["dev"]
    batches, steps = _training_batches(options, model, data, worker)
    with worker.strategy.scope():
        compile_trainer(options, model, steps)
    fed = worker.fed(
        model.with_own_targets(batches), _batches_for(model, dev, options.batch_size), by_row=options.shard == "row"
    )
    bar, history, best = ProgressBar(console, steps), keras.callbacks.History(), best_weights(options, model.trainer.heads)
    trained = Batches()
    # Removed at the end of training; until then, the run can be interrupted and go on.
    saver = callbacks.Checkpoint(Path(options.output) / CHECKPOINT, every=100, keep=False)
    if not options.resume and saver.path.is_file():  # in the folder of a program that trains without saving a model
        check_output(options)
    worker.wait()
    started = time.perf_counter()
    try:
        model.trainer.fit(
            **fed,
            epochs=options.epochs,
            callbacks=[bar, history, best, saver, trained],
            shuffle=False,
            verbose=0,
        )
    except ValueError as error:
        if not options.resume:
            raise
        raise InputError(f"`--resume` must have the data and the options with which the run began. {error}") from error
    except KeyboardInterrupt:
        if not history.history:
            raise
        best.on_train_end()  # which Keras leaves out
        console.print("interrupted: evaluating and saving the model trained so far; add --resume to continue instead")
    finally:
        bar.close()
    seconds, epochs = time.perf_counter() - started, len(history.epoch)
    # Without any finite validation loss, the weights are those of the last epoch.
    best_epoch = epochs if best.best_score_epoch is None else best.best_score_epoch + 1
    figures = {
        "epochs": epochs,
        "best_epoch": best_epoch,
        "seconds": seconds,
        "examples_per_second": epochs * len(train.texts) / seconds,
        "updates": int(model.trainer.update_count),
    }
    if not worker.is_alone:
        rows = worker.rows_of(batches, whole=options.shard == "row") * trained.number() / steps
        figures["workers"] = [{"examples_per_second": speed} for speed in worker.of_each(rows / seconds)]
    return figures, history.history, batches


def _training_batches(options: Namespace, model: PriceModel, data: Data, worker: Worker) -> tuple[tf.data.Dataset, int]:
    """The training batches, of all workers or of this one's files, and the number of steps per epoch."""
    train, seed = data.splits["train"], options.seed
    if options.shard == "row":
        return training_batches(train, model.vectorizers, options.batch_size, seed=seed, swaps=data.swaps)
    number = len(data.files)
    check_files(number, worker.number, options.batch_size)
    ends = np.cumsum(data.files)

    def of_file(file: int) -> tuple[tf.data.Dataset, int]:
        rows = slice(ends[file] - data.files[file], ends[file])
        labels, *others = (values[rows] for values in (train.labels, train.texts, train.targets, *data.swaps))
        examples = Examples(*others[:2], labels, {head: values[rows] for head, values in train.additional.items()})
        size = options.batch_size * (file + 1) // number - options.batch_size * file // number
        return training_batches(examples, model.vectorizers, size, seed=seed + file, swaps=others[2:])

    return batches_of_files(worker, number, of_file)


def evaluate(
    model: PriceModel, examples: Examples, *, batch_size: int, beam_width: int = 1
) -> tuple[dict[str, float], Answers]:
    """The metrics of a model's heads on the given rows, and its predictions."""
    started = time.perf_counter()
    logs = model.trainer.evaluate(_batches_for(model, examples, batch_size), return_dict=True, verbose=0)
    answers = model.answer(examples.texts, beam_width=beam_width)
    seconds = time.perf_counter() - started
    figures: dict[str, float] = {}
    for head, column in model.columns.items():
        figures |= column.figures(examples.by_head[head], answers.by_head[head])
    if answers.replies is not None:
        replied = [pair for pair in zip(examples.targets, answers.replies) if pair[0].strip()]
        for of_replies in (reply_figures, overlap_figures) if replied else ():
            figures |= of_replies(*zip(*replied))
        figures["reply_token_accuracy"] = float(logs["reply_token_accuracy"])
    figures |= {name: float(value) for name, value in logs.items() if name.endswith("loss")}
    figures |= {
        "rows": len(examples.texts),
        "labelled_rows": int(np.sum(examples.labels != NO_LABEL)),
        "seconds": seconds,
        "examples_per_second": len(examples.texts) / seconds,
    }
    return figures, answers


def train(options: Namespace, console: Console) -> None:
    """Trains, evaluates and writes all results to `--output`.

    Raises:
        InputError: The data, an option, the cluster or the folder cannot be used.
    """
    worker = worker_of(options)  # before anything else of TensorFlow is used
    console = console if worker.is_chief else Console(quiet=True)
    _check_balancer(options.balancer)
    if check_output(options):
        console.print(f"the run in {options.output} has finished", highlight=False, soft_wrap=True)
        return
    folder = _made("--output", options.output)
    if options.export is not None:
        _made("--export", options.export)
    keras.utils.set_random_seed(options.seed)
    data = load_data(options, lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
    with worker.strategy.scope():
        model = build_model(options, data)
    sizes = ", ".join(f"{len(examples.texts)} {split}" for split, examples in data.splits.items())
    words = " and ".join(str(len(vocabulary)) for vocabulary in model.vocabularies)
    prices = f"{len(data.ranges.names)} price ranges" if "price" in data.heads else "no prices"
    heads = "".join(f"; {column}" for column in data.additional)
    console.print(f"{sizes} rows; {prices}{heads}; {words} tokens", highlight=False)
    if worker.number > 1:
        print(worker, flush=True)
    if worker.is_chief:
        check_same_options(options, folder / OPTIONS_FILE)
    training, history, batches = train_model(options, model, data, console, worker)
    if "workers" in training:
        speed = training["workers"][worker.index]["examples_per_second"]
        print(f"worker {worker.index + 1} of {worker.number}: {speed:.1f} examples per second", flush=True)
    with worker.folder(folder) as own:  # all workers read what is saved; only the chief's files are used
        model.save(own, data.columns)
    if worker.is_chief:
        if not worker.is_alone:  # what follows is done on one device, by the chief alone
            model, _ = load_model(folder)
            compile_trainer(options, model, 1)
        _report(options, console, folder, data, model, (training, history, batches))
    worker.leave()


def _report(
    options: Namespace, console: Console, folder: Path, data: Data, model: PriceModel, trained: tuple[Any, Any, Any]
) -> None:
    """Exports and evaluates a trained model, and writes all results."""
    training, history, batches = trained
    _export(options, model, console)
    report.write_history(folder / "history.csv", history)
    report.draw_curves(folder / "curves.png", history, list(model.trainer.heads))
    training["padding_share"] = padding_share(batches)
    metrics: dict[str, Any] = {"training": training, "options": _plain(options), "splits": {}}
    for split, examples in data.splits.items():
        with console.status(f"evaluating {len(examples.texts)} {split} rows"):
            figures, answers = evaluate(model, examples, batch_size=options.batch_size, beam_width=options.beam)
        metrics["splits"][split] = figures
    report.write_report(folder, model, examples, answers)  # on the last split
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(report.metrics_table(metrics["splits"]))
    console.print(
        f"trained for {training['seconds']:.0f} s, best at epoch {training['best_epoch']} of {training['epochs']}; "
        f"{training['padding_share']:.1%} of the ids were padding; written to {folder}",
        highlight=False,
        soft_wrap=True,
    )


def use(options: Namespace, console: Console) -> None:
    """Predicts for the texts in `--predict` and exports the heads to `--export`, with the model in `--load`.

    Raises:
        InputError: The folder contains no model, or that of `--export` is not writable.
    """
    model, columns = load_model(Path(options.load))
    if options.export is not None:
        _made("--export", options.export)
        _export(options, model, console)
    if options.predict is None:
        return
    answers = model.answer(options.predict, beam_width=options.beam)
    for place, asked in enumerate(options.predict):
        lines = [(columns["source"], asked), (columns["target"], answers.replies[place])]
        for head, column in model.columns.items():
            lines.append((column.column, column.describe(answers.by_head[head][place], asked)))
        for name, answer in lines:
            console.print(f"{name}: {answer}", highlight=False, markup=False, soft_wrap=True)


def _made(option: str, path: str) -> Path:
    """The folder that an option names; it is created if necessary."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"`{option}` must be a writable folder. Received: {path!r}: {error.strerror}. Choose another."
        ) from error
    return Path(path)


def _export(options: Namespace, model: PriceModel, console: Console) -> None:
    if options.export is None:
        return
    with console.status("exporting"):
        model.export(Path(options.export), beam_width=options.beam)
    console.print(f"heads exported to {options.export}", highlight=False, soft_wrap=True)


def _as_data(
    tables: dict[str, list[dict[str, str]]],
    columns: dict[str, str],
    ranges: LabelColumn,
    additional: Sequence[Column] = (),
    swap_columns: Sequence[str] = (),
) -> Data:
    splits = {}
    for split, rows in tables.items():
        texts, targets, labels = (_column(rows, columns[name]) for name in ("source", "target", "label"))
        of_heads = {column.head: column.targets(_column(rows, column.column), texts) for column in additional}
        splits[split] = Examples(texts, targets, ranges.targets(labels, texts), of_heads)
    swaps = [_column(tables["train"], name) for name in swap_columns]
    return Data(columns, ranges, splits, swaps, additional=additional)


def _parallel_data(paths: dict[str, Sequence[str]], tell: Callable[[str], None]) -> Data:
    """Parallel text files, without prices. A target word that occurs only once is left out of the vocabulary."""
    splits = {}
    for split, (source, target) in paths.items():
        pairs = list(zip(*read_lines(source, target)))
        kept = [pair for pair in pairs if all(pair)]
        left_out = f"; {len(pairs) - len(kept)} rows without a text on both sides left out" if len(kept) < len(pairs) else ""
        tell(f"{len(kept)} rows of {source} and {target}{left_out}")
        if not kept:
            raise InputError(
                f"`{source}` and `{target}` must have rows with a text on both sides. Received: none. Pass two parallel "
                "files."
            )
        texts, targets = map(list, zip(*kept))
        splits[split] = Examples(texts, targets, np.full([len(texts)], NO_LABEL, np.int32))
    columns = {"source": "source", "target": "target", "label": "price"}
    return Data(columns, LabelColumn("price", "price", ()), splits, swaps=[], least_in_targets=2)


def _batches_for(model: PriceModel, examples: Examples, batch_size: int) -> tf.data.Dataset:
    return model.with_own_targets(evaluation_batches(examples, model.vectorizers, batch_size))


def _column(rows: Sequence[dict[str, str]], name: str) -> list[str]:
    return [row[name] for row in rows]


def _check_balancer(name: str | None) -> None:
    try:
        balancing.get(name)
    except ValueError as error:
        raise InputError(str(error).replace("`balancer`", "`--balancer`", 1)) from error


def _plain(options: Namespace) -> dict[str, Any]:
    """The options of a training run in a form that JSON can represent."""
    return {name: value for name, value in vars(options).items() if name not in ("load", "predict", "export", "resume")}
