"""The first command: its table, its sentence and its picture are of the numbers that it measured."""

from __future__ import annotations

import contextlib
import io
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.seq2seq_price import command, comparison, model
from multihead import Head, MultiHeadTrainer

pytestmark = pytest.mark.programs

ALONE = {"reply": 0.62, "price": 0.84, "updates": 1188, "seconds": 24.0}


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """The folder of a run, and what it printed."""
    folder = tmp_path_factory.mktemp("comparison") / "deep"
    sizes = ["--orders", "60", "--epochs", "3", "--units", "4", "--embedding", "3", "--batch-size", "16"]
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert command.main([*sizes, "--output", str(folder)]) == 0
    return folder, told.getvalue()


def test_a_small_run(small_run):
    folder, told = small_run
    lines = told.splitlines()
    epochs = [line for line in lines if "epoch" in line and "left" in line]
    assert [line.split(" epoch")[0].strip() for line in epochs] == [
        *["reply alone"] * 2, *["price alone"] * 2, *["plain sum"] * 3, *["balanced"] * 3,
    ]  # fmt: skip
    assert max(map(len, lines[:-1])) <= 80 and epochs[-1].endswith("  0:00 left")  # the last line has a path
    rows = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert list(rows) == ["each head alone", "plain sum", "balanced"]
    steps = rows["plain sum"]["updates"] / 3
    assert [row["updates"] / steps for row in rows.values()] == [4, 3, 3]
    for name, row in rows.items():
        (shown,) = [line for line in lines if line.startswith(f"│ {name} ")]
        cells = [f"{row['reply']:.1%}", f"{row['price']:.1%}", f"{row['updates']}", f"{row['seconds']:.0f}"]
        assert [cell.strip() for cell in shown.strip("│").split("│")[1:]] == cells
    assert "Take the " in told
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_its_model_is_used_and_never_overwritten(small_run, capsys):
    folder, _ = small_run
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert command.main(["--output", str(folder)]) == 2
    assert "which has a finished one. Pass another --output, or remove the folder." in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert command.main(["--load", str(folder), "--predict", "two oak chairs"]) == 0
    assert "price: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plain", "balanced", "begins"),
    [
        (
            (0.47, 0.88),
            (0.64, 0.86),
            "Take the balanced model: 64.0% exact replies instead of 47.0% (62.0% alone), with -2.0 points (noise)",
        ),
        (
            (0.47, 0.88),
            (0.64, 0.70),
            "Take the plain sum model: 88.0% right prices instead of 70.0% (84.0% alone), with -17.0 points in",
        ),
        ((0.62, 0.86), (0.64, 0.87), "Take the plain sum: balancing changes neither head beyond the noise"),
    ],
)
def test_the_sentence_says_what_the_numbers_say(plain, balanced, begins):
    both = ({**ALONE, "reply": reply, "price": price} for reply, price in (plain, balanced))
    rows = dict(zip(("each head alone", "plain sum", "balanced"), (ALONE, *both)))
    assert comparison.advice(rows, 1000).startswith(begins)


@pytest.mark.filterwarnings("ignore:.build... was called on layer 'multi_head_trainer'")  # nothing has weights here
def test_scores_by_hand():
    """A reply counts if it is right up to its end, whatever follows."""
    replies = np.array([[4, 3, 9, 9], [5, 5, 3, 0], [6, 3, 0, 0]], np.float32)

    class Written(keras.layers.Layer):
        def call(self, inputs, targets):
            return tf.one_hot(targets, 10)

        def generate(self, inputs):
            return inputs[:, :4]

    heads = {
        "reply": Head(Written(), "sparse_categorical_crossentropy", teacher_forcing=True),
        "price": Head(keras.layers.Lambda(lambda x: x[:, 4:]), "sparse_categorical_crossentropy"),
    }
    trainer = MultiHeadTrainer(keras.layers.Lambda(lambda x: x), heads)
    trainer.compile("sgd")
    ids = np.concatenate([replies, np.eye(3, dtype=np.float32)], axis=1)
    targets = {"reply": np.array([[4, 3, 0, 0, 0], [5, 3, 0, 0, 0], [6, 3, 0, 0, 0]]), "price": np.array([0, 1, 0])}
    assert model.scores(trainer, ids, targets) == {"reply": pytest.approx(2 / 3), "price": pytest.approx(2 / 3)}
