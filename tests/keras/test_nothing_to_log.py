"""A loss of nothing is NaN, and no callback takes it for the best."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

NAN = float("nan")


def without(targets, name):
    return {**targets, name: np.full_like(targets[name], -1 if name == "price" else NAN)}


def test_a_head_without_labels_logs_nan_in_training_and_evaluation():
    inputs, targets = tiny.data(8)
    trainer = tiny.trainer("adam", heads=("tag", "price"), metrics=True, run_eagerly=False)
    batch = inputs, without({name: targets[name] for name in ("tag", "price")}, "price")
    logs = trainer.fit(*batch, validation_data=batch, verbose=0).history
    for prefix in ("", "val_"):
        assert np.isnan([*logs[f"{prefix}price_loss"], *logs[f"{prefix}price_accuracy"]]).all()
        assert np.isfinite([*logs[f"{prefix}loss"], *logs[f"{prefix}tag_loss"]]).all()


def test_an_evaluation_without_any_label_logs_nan():
    inputs, targets = tiny.data(4)
    for weighting in (None, "Uncertainty"):
        trainer = tiny.trainer("adam", heads=("price",), weighting=weighting)
        logs = trainer.evaluate(inputs, without(targets, "price")["price"], return_dict=True, verbose=0)
        assert np.isnan(logs["loss"]) and np.isnan(logs["price_loss"])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("broken", [0, 1])
def test_callbacks_do_not_take_a_skipped_epoch_for_the_best(tmp_path, broken):
    inputs, targets = tiny.data(4, missing=False)
    trainer = tiny.trainer("sgd", heads=("size",))
    targets = targets["size"].copy()

    class Break(keras.callbacks.Callback):
        """In one epoch nothing has a label."""

        def on_epoch_begin(self, epoch, logs=None):
            weight = NAN if epoch == broken else 0.1
            trainer.heads["size"].module.dense.bias.assign([weight])

    stop = keras.callbacks.EarlyStopping("loss", patience=3, mode="min")
    options = {"save_best_only": True, "save_weights_only": True, "mode": "min"}
    keep = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.weights.h5"), "loss", **options)
    lower = keras.callbacks.ReduceLROnPlateau("loss", patience=3, mode="min")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Epoch .* skipped")
        logs = trainer.fit(
            inputs, targets, batch_size=4, epochs=3, verbose=0, shuffle=False, callbacks=[Break(), stop, keep, lower]
        ).history["loss"]
    assert [np.isnan(loss) for loss in logs] == [epoch == broken for epoch in range(3)]
    for callback in (stop, keep, lower):
        assert float(callback.best) == pytest.approx(np.nanmin(logs), rel=1e-6)


def test_validation_at_the_end_of_an_epoch_hides_no_skipped_update():
    inputs, targets = tiny.data(8, missing=False)
    broken = {**targets, "size": np.full_like(targets["size"], 1e30)}
    trainer = tiny.trainer("sgd")
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped.* from head 'size'"):
        history = trainer.fit(inputs, broken, batch_size=8, validation_data=(inputs, targets), verbose=0).history
    assert history["skipped_updates"] == [1] and np.isfinite(history["val_size_loss"][0])
