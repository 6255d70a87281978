"""Price accuracy of linear models, which see only words: the baseline that the example's model must beat.

    python -m benchmarks.linear_baseline [--train FILE --dev FILE ...]

Logistic regression on a bag of words, and on TF-IDF of up to bigrams and trigrams, trained and evaluated on the rows that
the example uses: its generated orders, or files with the example's options. There are three variants of the texts:

- `written`: the original texts;
- `shuffled`: with the words in random order, which has no effect on a bag of words;
- `masked`: with column names instead of the values of `--swap-column`, in texts and targets, so that no model can use names
  that happen to correlate with a price range.

`--variants` selects variants. `--model` also trains the example's model on them: its loss in accuracy on shuffled words
shows how much word order matters.
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
from examples.seq2seq_price.columns import NO_LABEL

TOKENS = r"(?u)[^\W_]+|[^\w\s]"
INVERSE_PENALTIES = (0.3, 1.0, 3.0, 10.0)
VARIANTS = ("written", "shuffled", "masked")


def linear_accuracies(train: Examples, dev: Examples) -> dict[str, float]:
    """Price accuracy on the labelled validation rows, by model; the penalty is tuned on a tenth of the training rows."""
    features = {
        "bag of words": CountVectorizer(token_pattern=TOKENS),
        "TF-IDF of 1-2-grams": TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 2)),
        "TF-IDF of 1-3-grams": TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 3), min_df=2),
    }
    (texts, labels), (dev_texts, dev_labels) = _labelled(train), _labelled(dev)
    split = len(texts) * 9 // 10
    accuracies = {}
    for name, vectorizer in features.items():
        scores = {}
        for inverse_penalty in INVERSE_PENALTIES:
            model = make_pipeline(vectorizer, LogisticRegression(C=inverse_penalty, max_iter=300, tol=1e-3))
            scores[inverse_penalty] = model.fit(texts[:split], labels[:split]).score(texts[split:], labels[split:])
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
    """The examples with values replaced by their column names in texts and targets, as whole words, ignoring case.

    Args:
        examples: The examples.
        rows: For each example, the values to mask by column name.
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
    """The data with one of the `VARIANTS` of the texts."""
    if variant == "written":
        return data
    if variant == "shuffled":
        splits = {split: shuffle_words(examples, options.seed) for split, examples in data.splits.items()}
        return replace(data, splits=splits)
    splits = {}
    for split, examples in data.splits.items():
        rows = run.read_rows(options, getattr(options, split)[0], options.swap_column)
        splits[split] = mask_values(examples, [{name: row[name] for name in options.swap_column} for row in rows])
    return replace(data, splits=splits, swaps=[])


def model_accuracy(options: Namespace, data: run.Data, console: Console) -> float:
    """Price accuracy of the example's model on the validation rows."""
    keras.utils.set_random_seed(options.seed)
    model = run.build_model(options, data)
    run.train_model(options, model, data, console)
    figures, _ = run.evaluate(model, data.splits["dev"], batch_size=options.batch_size)
    return figures["price_accuracy"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = command.build_parser()
    parser.description = "Price accuracy of linear models; the options are those of the example."
    parser.add_argument("--variants", choices=VARIANTS, nargs="+", help="variants of the texts (default: all available)")
    parser.add_argument("--model", action="store_true", help="also train the example's model on the same texts")
    options = parser.parse_args(arguments)
    command.check_price_alone(parser, options)
    asked = options.variants or [name for name in VARIANTS if name != "masked" or options.swap_column]
    if "masked" in asked and not options.swap_column:
        parser.error("--variants masked requires --swap-column. Pass the columns whose values are masked.")
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
    table = Table("model", *asked, title="price accuracy on the validation rows")
    for name, row in cells.items():
        table.add_row(name, *row)
    console.print(table)


def _labelled(examples: Examples) -> tuple[list[str], np.ndarray]:
    rows = np.flatnonzero(examples.labels != NO_LABEL)
    return [examples.texts[row] for row in rows], examples.labels[rows]


if __name__ == "__main__":
    sys.exit(main())
