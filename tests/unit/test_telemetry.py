"""The statistics of the logs: each against the same statistic computed by hand, and a further one by one entry alone."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping, schedules, telemetry
from multihead.heads import _metric_names
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
TARGETS = {
    "price": X[:, :1] - 2.0,
    "size": np.where(np.arange(8)[:, None] % 2 == 0, np.nan, 3.0 * X[:, 1:2]).astype("float32"),  # half are missing
}


def test_no_metric_can_take_the_name_of_a_figure():
    reserved = {"update": _metric_names.TOTALS, "head": _metric_names.STATISTICS, "pair": _metric_names.OF_PAIRS}
    for statistic in telemetry.STATISTICS:
        assert statistic.name in reserved[statistic.per]
    model = MultiHeadTrainer(keras.layers.Dense(2))
    model.add_head("price", keras.layers.Dense(1), "mse", metrics=[keras.metrics.MeanSquaredError(name="size_cosine")])
    with pytest.raises(
        ValueError, match="Received: 'price_size_cosine' would stand for the cosine of heads 'price' and 'size'"
    ):
        model.add_head("size", keras.layers.Dense(1), "mse")


def trainer(**options):
    result = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    result.add_head("price", keras.layers.Dense(1), "mse", weight=0.5)
    result.add_head("size", keras.layers.Dense(1), "mse", weight=lambda step: 2.0 + tf.cast(step, tf.float32))
    result.compile(keras.optimizers.SGD(0.01), **options)
    result.compute_gradients((X, TARGETS))  # creates the variables
    return result


def representation_gradients(trainer, step=0):
    """`[num_heads, examples * units]`: a tape over the weighted losses, and the losses themselves."""
    representation = trainer.encoder(X)
    weights = {"price": 0.5, "size": 2.0 + step}
    rows, losses = [], []
    for name, targets in TARGETS.items():
        labelled = ~np.isnan(targets)
        with tf.GradientTape() as tape:
            tape.watch(representation)
            squares = tf.square(trainer.heads[name].module(representation) - np.nan_to_num(targets))
            loss = tf.reduce_sum(tf.where(labelled, squares, 0.0)) / labelled.sum()
            weighted = weights[name] * loss
        rows.append(tape.gradient(weighted, representation).numpy().ravel())
        losses.append(float(loss))
    return np.array(rows, np.float64), losses


def logs_of_one_update(trainer, targets=TARGETS):
    history = trainer.fit(X, targets, batch_size=8, verbose=0).history
    return {name: values[-1] for name, values in history.items()}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("balancer", [None, balancing.EqualNorms()])
def test_norms_shares_and_coefficients_are_those_of_a_tape(balancer):
    model = trainer(balancer=balancer)
    rows, losses = representation_gradients(model)
    norms = np.linalg.norm(rows, axis=1)
    coefficients = np.ones(2) if balancer is None else norms.mean() / norms
    logs = logs_of_one_update(model)
    for k, name in enumerate(TARGETS):
        assert logs[f"{name}_loss"] == pytest.approx(losses[k], rel=1e-5)
        assert logs[f"{name}_norm"] == pytest.approx(norms[k], rel=1e-5)
        assert logs.get(f"{name}_coefficient", 1.0) == pytest.approx(coefficients[k], rel=1e-5)
        assert logs[f"{name}_share"] == pytest.approx((coefficients * norms / (coefficients @ norms))[k], rel=1e-5)
        assert logs[f"{name}_weight"] == (0.5, 2.0)[k]
        assert logs[f"{name}_updates"] == 1
    assert logs["loss"] == pytest.approx(0.5 * losses[0] + 2.0 * losses[1], rel=1e-5)


def test_statistics_of_a_head_are_means_over_the_updates_that_train_it():
    model = trainer(head_schedule=schedules.Alternate({"price": 1, "size": 2}))
    history = model.fit(
        np.tile(X, (6, 1)), {k: np.tile(v, (6, 1)) for k, v in TARGETS.items()}, batch_size=8, verbose=0
    ).history
    assert (history["price_updates"], history["size_updates"]) == ([2], [4])
    assert history["size_weight"] == [pytest.approx(2.0 + np.mean([1, 2, 4, 5]))]
    assert history["price_share"] == [1] and history["size_share"] == [1]  # each trains alone


def test_every_statistic_is_in_the_table_of_the_docs():
    page = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    forms = {"head": "{head}_", "pair": "{head}_{other}_", "update": ""}
    names = {f"`{forms[statistic.per]}{statistic.name}`" for statistic in telemetry.STATISTICS}
    for name in names | {"`loss`", "`{head}_loss`", "`skipped_updates`", "`{statistic}_average`"}:
        assert any(name in line.split("|")[1] for line in page.splitlines() if line.startswith("| `")), name


def test_full_adds_statistics_whose_names_are_stable():
    model = trainer(telemetry="full", clip=clipping.ByGlobalNorm(1.0), run_eagerly=True)
    added = set(logs_of_one_update(model)) - set(logs_of_one_update(trainer(run_eagerly=True)))
    plain = {"loss", "update_norm", "price_size_cosine"}
    plain |= {f"{head}_{name}" for head in TARGETS for name in ("loss", "norm", "share", "update_cosine")}
    new = {"update_norm", "update_norm_clipped", "clipped_updates", "price_size_cosine"}
    new |= {f"{head}_update_cosine" for head in TARGETS}
    assert added == new | {f"{name}_average" for name in plain}


def test_heads_that_read_no_common_tensor_have_no_cosine_at_the_representation():
    def logs(**options):
        inputs = keras.Input([3])
        made = MultiHeadTrainer(keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)]))
        for place, name in enumerate(TARGETS):
            made.add_head(name, keras.layers.Dense(1), "mse", reads=place)
        made.compile("sgd", telemetry="full", run_eagerly=True, **options)
        return logs_of_one_update(made)

    assert "price_size_cosine" not in logs()
    assert logs(balancer="Sum", balance_at="parameters")["price_size_cosine"] == 0  # no common parameters, either


def test_losses_alone_on_request():
    logs = logs_of_one_update(trainer(telemetry=None))
    assert set(logs) == {"loss", "price_loss", "size_loss", "price_weight", "size_weight", "skipped_updates"}
