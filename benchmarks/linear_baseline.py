"""How well linear models tell the price range from words alone: the bar that the example's model must clear.

    python -m benchmarks.linear_baseline [--train FILE --dev FILE ...]

Logistic regression on a bag of words, and on TF-IDF of one or two words in a row, trained and evaluated on the rows
that the example uses: its own orders, or files given as to the example. `words shuffled` trains and evaluates on the
same texts with their words in random order, which a bag of words does not notice.

`--shuffled-model` also trains the example's model on shuffled words: what it loses is what the order of words tells.
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Sequence

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

TOKENS = r"(?u)[^\W_]+|[^\w\s]"
INVERSE_PENALTIES = (0.3, 1.0, 3.0, 10.0)


def linear_accuracies(train: Examples, dev: Examples) -> dict[str, float]:
    """Price accuracy on the labelled held-out rows by model; the penalty is the best of four on a part of training."""
    features = {
        "bag of words": CountVectorizer(token_pattern=TOKENS),
        "TF-IDF of 1-2-grams": TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 2)),
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
    parser.add_argument("--shuffled-model", action="store_true", help="train the example's model on shuffled words too")
    options = parser.parse_args(arguments)
    data = run.load_data(options)
    shuffled = run.Data(
        data.columns,
        data.ranges,
        {split: shuffle_words(examples, options.seed) for split, examples in data.splits.items()},
        data.swaps,
    )
    console = Console()
    table = Table("model", "as written", "words shuffled", title="price accuracy on the held-out rows")
    written, random_order = (linear_accuracies(rows.splits["train"], rows.splits["dev"]) for rows in (data, shuffled))
    for name, accuracy in written.items():
        table.add_row(name, f"{accuracy:.3f}", f"{random_order[name]:.3f}")
    if options.shuffled_model:
        table.add_row(
            "the example's model", *(f"{model_accuracy(options, rows, console):.3f}" for rows in (data, shuffled))
        )
    console.print(table)


def _labelled(examples: Examples) -> tuple[list[str], np.ndarray]:
    rows = np.flatnonzero(examples.labels != NO_LABEL)
    return [examples.texts[row] for row in rows], examples.labels[rows]


if __name__ == "__main__":
    sys.exit(main())
