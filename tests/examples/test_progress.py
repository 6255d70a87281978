"""The best epoch's weights are kept and put back, and patience ends."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from examples.seq2seq_price.progress import BestWeights

pytestmark = pytest.mark.programs


def train(losses, patience):
    """A model whose only weight is the epoch's number, as if it had reached these losses."""
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    model.build((None, 1))
    model.stop_training = False
    best = BestWeights(patience)
    best.set_model(model)
    for epoch, loss in enumerate(losses):
        model.trainable_variables[0].assign([[epoch + 1.0]])
        best.on_epoch_end(epoch, {"val_loss": loss})
        if model.stop_training:
            break
    last = float(model.get_weights()[0][0, 0])
    best.restore()
    return best.best_epoch, last, float(model.get_weights()[0][0, 0])


@pytest.mark.parametrize(
    ("losses", "patience", "best", "last"),
    [
        ([3, 2, 1], 1, 3, 3),
        ([3, 1, 2, 0.5], None, 4, 4),
        ([3, 1, 2, 0.5], 1, 2, 3),
        ([3, 1, 2, 0.5, 1, 1], 2, 4, 6),
        ([1, 1, 1, 1], 3, 1, 4),
        ([np.nan, 2, np.nan], None, 2, 3),
        ([np.nan, np.nan], 1, 1, 2),
    ],
)
def test_the_best_epoch_counts(losses, patience, best, last):
    assert train(losses, patience) == (best, last, best)


def test_nothing_is_put_back_before_an_epoch_ends():
    assert train([], None)[0] == 0
