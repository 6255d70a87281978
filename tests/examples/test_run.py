"""Training keeps the best epoch's weights, also when it is interrupted, and patience ends."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from examples.seq2seq_price import command, report, run
from examples.seq2seq_price.batches import Examples
from examples.seq2seq_price.columns import LabelColumn
from examples.seq2seq_price.data import Data
from multihead import MultiHeadTrainer

pytestmark = pytest.mark.programs


def train(losses, patience):
    """A trainer whose encoder's only weight is the epoch's number, as if it had reached these validation losses.

    Returns:
        The best epoch, the last one, and the epoch whose weight is there at the end.
    """
    encoder = keras.layers.Dense(1, use_bias=False)
    encoder.build((None, 1))
    trainer = MultiHeadTrainer(encoder)
    for head in ("reply", "price"):
        trainer.add_head(head, keras.layers.Dense(1), "mse")
    trainer.stop_training = False
    best = run.best_weights(patience, trainer.heads)
    best.set_model(trainer)
    best.on_train_begin()
    for epoch, loss in enumerate(losses):
        best.on_epoch_begin(epoch)
        encoder.kernel.assign([[epoch + 1.0]])
        best.on_epoch_end(epoch, {"val_loss": loss, "val_reply_loss": -loss, "val_price_loss": 0.0})
        if trainer.stop_training:
            break
    best.on_train_end()
    found = None if best.best_score_epoch is None else best.best_score_epoch + 1
    return found, epoch + 1, float(np.array(encoder.kernel)[0, 0])


@pytest.mark.filterwarnings("ignore:HeadEarlyStopping finds no value:RuntimeWarning")
@pytest.mark.parametrize(
    ("losses", "patience", "best", "last"),
    [
        ([3, 2, 1], 1, 3, 3),
        ([3, 1, 2, 0.5], 9, 4, 4),
        ([3, 1, 2, 2.5, 3], 9, 2, 5),
        ([3, 1, 2, 0.5], 1, 2, 3),
        ([3, 1, 2, 0.5, 1, 1], 2, 4, 6),
        ([1, 1, 1, 1], 3, 1, 4),
        ([np.nan, 2, np.nan], 9, 2, 3),
        ([np.inf, 2, 3], 9, 2, 3),
    ],
)
def test_the_epoch_of_the_lowest_total_loss_counts(losses, patience, best, last):
    assert train(losses, patience) == (best, last, best)


@pytest.mark.filterwarnings("ignore:HeadEarlyStopping (finds no|restores nothing):RuntimeWarning")
def test_without_a_validation_loss_the_last_epoch_counts():
    assert train([np.nan, np.nan, np.nan], 2) == (None, 2, 2)


def test_an_interrupted_run_keeps_its_best_epoch(tmp_path, monkeypatch, capsys, without_graphs):
    """Ctrl-C in the third epoch, after its first update."""
    weights = []

    class Interrupting(report.Progress):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            weights.append(self.model.encoder.get_weights())

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if len(weights) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(report, "Progress", Interrupting)
    arguments = ["--epochs", "9", "--units", "4", "--embedding", "3", "--batch-size", "4", "--learning-rate", "0.1"]
    options = command.parse([*arguments, "--patience", "9", "--output", str(tmp_path)])
    rows = Examples(["a b", "b a"] * 4, ["x", "y"] * 4, {"price": np.array([0, 1] * 4, np.int32)})
    prices = LabelColumn("price", "cost", ("high", "low"))
    data = Data({"source": "text", "target": "order", "label": "cost"}, {"price": prices}, {"train": rows, "dev": rows})
    model = run.build_model(options, data)
    trained, history = run.train_model(options, model, data)
    assert trained["epochs"] == 2 and trained["weights_of_epoch"] == np.argmin(history.history["val_loss"]) + 1
    for weight, best in zip(model.trainer.encoder.get_weights(), weights[trained["weights_of_epoch"] - 1]):
        np.testing.assert_array_equal(weight, best)
    assert "interrupted: evaluating and saving the model trained so far" in capsys.readouterr().out
