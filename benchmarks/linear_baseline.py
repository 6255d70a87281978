"""How well linear models tell the price range from words alone: the bar that the example's model must clear.

    python -m benchmarks.linear_baseline [--train FILE --dev FILE ...]

Logistic regression on a bag of words, and on TF-IDF of up to two and three words in a row, trained and evaluated on the
rows that the example uses: its own orders, or tables given as to the example. There are three variants of the texts:

- `written`: as they are;
- `shuffled`: with their words in random order, which a bag of words does not notice;
- `masked`: with the columns' names in place of the values of `--swap-column`, in texts and targets. Names that go with a
  price range by chance are then no use to either side.

`--variants` chooses among them. `--model` trains the example's model on them, too: what it loses on shuffled words is
what their order tells.
"""

from __future__ import annotations

import random
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

import keras
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from examples.seq2seq_price import command, run
from examples.seq2seq_price.batches import Examples
from examples.seq2seq_price.ranges import NO_LABEL
from examples.seq2seq_price.tables import read_table

TOKENS = r"(?u)[^\W_]+|[^\w\s]"
INVERSE_PENALTIES = (0.3, 1.0, 3.0, 10.0)
VARIANTS = ("written", "shuffled", "masked")


def linear_accuracies(train: Examples, dev: Examples) -> dict[str, float]:
    """Price accuracy on the labelled held-out rows by model; the penalty is the best of four on a part of training."""
    features = {
        "bag of words": CountVectorizer(token_pattern=TOKENS),
        "TF-IDF of 1-2-grams": TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 2)),
        "TF-IDF of 1-3-grams": TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 3), min_df=2),
    }
    (texts, labels), (dev_texts, dev_labels) = _labelled(train), _labelled(dev)
    part = len(texts) * 9 // 10
    accuracies = {}
    for name, vectorizer in features.items():
        scores = {}
        for inverse_penalty in INVERSE_PENALTIES:
            model = make_pipeline(vectorizer, LogisticRegression(C=inverse_penalty, max_iter=300, tol=1e-3))
            scores[inverse_penalty] = model.fit(texts[:part], labels[:part]).score(texts[part:], labels[part:])
        best = max(scores, key=lambda inverse_penalty: scores[inverse_penalty])
        model = make_pipeline(vectorizer, LogisticRegression(C=best, max_iter=300, tol=1e-3))
        accuracies[name] = float(model.fit(texts, labels).score(dev_texts, dev_labels))
    return accuracies


def shuffle_words(examples: Examples, seed: int) -> Examples:
    """The same rows with the words of each text in random order."""
    generator = random.Random(seed)
    texts = [" ".join(generator.sample(text.split(), len(text.split()))) for text in examples.texts]
    return examples._replace(texts=texts)


def mask_values(examples: Examples, rows: Sequence[dict[str, str]]) -> Examples:
    """The examples with the columns' names in place of their values, as whole words in any case, in texts and targets.

    Args:
        examples: The examples.
        rows: The columns to mask, by name, of each.
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for text, target, row in zip(examples.texts, examples.targets, rows):
        for column, value in row.items():
            if value:
                pattern = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)
                text, target = pattern.sub(f"some{column}", text), pattern.sub(f"some{column}", target)
        sides[0].append(text)
        sides[1].append(target)
    return Examples(*sides, examples.labels)


def variant_of(data: run.Data, variant: str, options: Namespace) -> run.Data:
    """The data with their texts as one of `VARIANTS` says."""
    if variant == "written":
        return data
    if variant == "shuffled":
        splits = {split: shuffle_words(examples, options.seed) for split, examples in data.splits.items()}
        return replace(data, splits=splits)
    splits = {}
    for split, examples in data.splits.items():
        splits[split] = mask_values(examples, read_table(getattr(options, split)[0], options.swap_column))
    return replace(data, splits=splits, swaps=[])


def model_accuracy(options: Namespace, data: run.Data, console: Console) -> float:
    """Price accuracy of the example's model on the held-out rows."""
    keras.utils.set_random_seed(options.seed)
    model = run.build_model(options, data)
    run.train_model(options, model, data, console)
    figures, _ = run.evaluate(model, data.splits["dev"], batch_size=options.batch_size)
    return figures["price_accuracy"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = command.build_parser()
    parser.description = "Linear models' price accuracy; the options are the example's."
    parser.add_argument("--variants", choices=VARIANTS, nargs="+", help="texts to use; all that there are without")
    parser.add_argument("--model", action="store_true", help="train the example's model on the same texts")
    options = parser.parse_args(arguments)
    asked = options.variants or [name for name in VARIANTS if name != "masked" or options.swap_column]
    if "masked" in asked and not options.swap_column:
        parser.error("--variants masked needs --swap-column. Name the columns whose values are to be masked.")
    data = run.load_data(options)
    console = Console()
    cells: dict[str, list[str]] = {}
    for variant in asked:
        rows = variant_of(data, variant, options)
        accuracies = linear_accuracies(rows.splits["train"], rows.splits["dev"])
        if options.model:
            accuracies["the example's model"] = model_accuracy(options, rows, console)
        for name, accuracy in accuracies.items():
            cells.setdefault(name, []).append(f"{accuracy:.4f}")
    table = Table("model", *asked, title="price accuracy on the held-out rows")
    for name, row in cells.items():
        table.add_row(name, *row)
    console.print(table)


def _labelled(examples: Examples) -> tuple[list[str], np.ndarray]:
    rows = np.flatnonzero(examples.labels != NO_LABEL)
    return [examples.texts[row] for row in rows], examples.labels[rows]


if __name__ == "__main__":
    sys.exit(main())
