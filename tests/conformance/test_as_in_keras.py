"""A trainer against one `keras.Model` with the same layers: weights, predictions, logs and `evaluate`."""

from __future__ import annotations

import numpy as np
import pytest

from multihead._ground.keras import KERAS_3
from tests.helpers import keras_twin
from tests.helpers.tiny import values, weights_of

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")

EXECUTIONS = {
    "eager": {"run_eagerly": True},
    "graph": {},
    "xla": {"jit_compile": True},
    "two at once": {"steps_per_execution": 2},
    **({} if KERAS_3 else {"tuned": {"steps_per_execution": "auto"}}),
}
FACTORS = ("form", "number", "weights", "execution", "optimizer", "clip", "regularization")
ROWS = [
    ("arrays", 22, "samples", "eager", "adamw", "clipnorm", "kernels"),
    ("arrays", 22, "classes", "eager", "momentum", "clipvalue", "activity"),
    ("dataset", 24, "classes", "graph", "average", "global_clipnorm", "add_loss"),
    ("generator", 22, "samples", "graph", "head_schedule", None, "activity"),
    ("sequence", 24, None, "xla", "sgd", "clipnorm", "add_loss"),
    ("frame", 22, "samples", "two at once", "scaled", None, "kernels"),
    ("split", 24, None, "eager" if KERAS_3 else "tuned", "momentum", "global_clipnorm", None),
]
"""Every value of each factor; `tests/pairs` has the combinations."""


def trained(row):
    """Both models after a `fit`, their histories with Keras's names replaced by ours, and the data."""
    single, weighted = row["weights"] == "classes", row["weights"] == "samples"
    options = (row["optimizer"], row["clip"], row["regularization"])
    pair = keras_twin.twins(*options, single=single, weighted=weighted, **EXECUTIONS[row["execution"]])
    parts = keras_twin.examples(row["number"], single=single, weighted=weighted)
    validation = keras_twin.examples(keras_twin.VALIDATION, single=single, weighted=weighted, seed=1)
    by_class = keras_twin.CLASS_WEIGHT
    class_weight = [{"class_weight": each} if single else {} for each in (by_class, {"kind": by_class})]
    # Keras does not take a data frame of targets.
    forms = ("arrays" if row["form"] == "frame" else row["form"], row["form"])
    histories = [
        keras_twin.fitted(model, form, parts, validation, in_dict=not single or model is pair[1], **more)
        for model, form, more in zip(pair, forms, class_weight)
    ]
    return pair, histories, parts


def renamed(name, single):
    """Our name of a statistic of Keras's, which does not name the only output."""
    return name.replace("accuracy", "kind_accuracy") if single and "kind" not in name else name


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_a_trainer_is_as_a_model(row):
    row = dict(zip(FACTORS, row))
    (model, trainer), (wanted, found), (x, y, weights) = trained(row)
    single = row["weights"] == "classes"
    wanted = {renamed(name, single): statistics for name, statistics in wanted.items()}
    own = {"skipped_updates", *(["kind_loss", "val_kind_loss"] if single else [])}
    added = ["added_loss"] if row["regularization"] else []
    assert set(found) - own == {*wanted, *added, *(f"val_{name}" for name in added if "val_loss" in wanted)}
    for name, statistics in wanted.items():
        np.testing.assert_allclose(found[name], statistics, rtol=2e-5, atol=1e-6, err_msg=name)
        assert all(type(statistic) is float for statistic in found[name])
    for one, other in zip(values(model.trainable_variables), weights_of(trainer), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6)
    predictions = model.predict(x, verbose=0)
    predictions = {"kind": predictions} if single else predictions
    for name, values_of_head in trainer.predict(x, verbose=0).items():
        np.testing.assert_allclose(values_of_head, predictions[name], rtol=2e-4, atol=2e-6)
    if single:
        return
    options = {"sample_weight": weights, "batch_size": 8, "verbose": 0}
    by_name, as_list = trainer.evaluate(x, y, return_dict=True, **options), trainer.evaluate(x, y, **options)
    wanted = model.evaluate(x, y, return_dict=True, **options)
    assert set(by_name) == {*wanted, *added}
    np.testing.assert_allclose([by_name[name] for name in wanted], list(wanted.values()), rtol=2e-5)
    np.testing.assert_allclose(as_list[: len(wanted)], model.evaluate(x, y, **options), rtol=2e-5)
    assert [by_name[name] for name in trainer.metrics_names] == pytest.approx(as_list)


def test_two_replicas_log_what_one_device_does(two_replicas):
    model, _ = keras_twin.twins(regularization="kernels")
    with two_replicas.scope():
        _, trainer = keras_twin.twins(regularization="kernels", run_eagerly=True)
    parts, validation = keras_twin.examples(22), keras_twin.examples(keras_twin.VALIDATION, seed=1)
    wanted, found = (keras_twin.fitted(each, "arrays", parts, validation, epochs=1) for each in (model, trainer))
    for name, statistics in wanted.items():
        np.testing.assert_allclose(found[name], statistics, rtol=2e-5, atol=1e-6, err_msg=name)
