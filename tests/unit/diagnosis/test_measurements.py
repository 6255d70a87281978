"""The statistics of `diagnose` are those of NumPy on gradients of a tape, and constant losses those of closed forms."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._display import drawing
from multihead.diagnosis._statistics import cosine_statistics, signal_of
from tests.helpers import planted, tiny


@pytest.fixture(scope="module")
def diagnosed():
    trainer, data = planted.healthy(0)
    return trainer, data, trainer.diagnose(data)


def gradients(trainer, data):
    """`[batches, heads, parameters]` by a tape, and where each layer's parameters begin."""
    variables = [tiny.tensor_variable(variable) for variable in trainer.encoder.trainable_variables]
    found = []
    for x, targets in data:
        rows = []
        for name, head in trainer.heads.items():
            with tf.GradientTape() as tape:
                predictions = head.module(trainer.encoder(x))
                loss = tf.reduce_mean(keras.losses.get(head.loss)(targets[name], predictions))
            rows.append(np.concatenate([each.numpy().ravel() for each in tape.gradient(loss, variables)]))
        found.append(rows)
    ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])
    return np.array(found, np.float64), ends


def test_cosines_layers_and_signal_are_those_of_a_tape(diagnosed):
    trainer, data, report = diagnosed
    rows, ends = gradients(trainer, data)
    unit = rows / np.linalg.norm(rows, axis=2, keepdims=True)
    cosines = unit @ unit.transpose(0, 2, 1)
    spread = report.spreads["parameters"]
    np.testing.assert_allclose(report.cosines["parameters"], cosines.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(spread.deviation, cosines.std(axis=0, ddof=1), atol=1e-5)
    margin = 2.364624 * cosines.std(axis=0, ddof=1) / np.sqrt(len(data))  # Student's 97.5 % quantile of 7 degrees
    pairs = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(spread.high[pairs], (cosines.mean(axis=0) + margin)[pairs], atol=1e-4)
    np.testing.assert_allclose(spread.low[pairs], (cosines.mean(axis=0) - margin)[pairs], atol=1e-4)

    mean = rows.mean(axis=0)
    variance = rows.var(axis=0, ddof=1).sum(axis=1)
    expected = np.maximum((mean**2).sum(axis=1) - variance / len(data), 0) / variance
    np.testing.assert_allclose(report.signal_to_noise, expected, rtol=1e-3)
    np.testing.assert_allclose(
        report.mean_cosines, mean @ mean.T / np.sqrt(np.outer(*[(mean**2).sum(axis=1)] * 2)), atol=1e-5
    )

    names = [layer.name for layer in trainer.encoder.layers]
    assert list(report.layer_norms) == list(report.layer_cosines) == names
    first = rows[:, :, : ends[1]]  # a kernel and a bias
    np.testing.assert_allclose(report.layer_norms[names[0]], np.sqrt((first**2).sum(axis=2).mean(axis=0)), rtol=1e-4)
    unit = first / np.linalg.norm(first, axis=2, keepdims=True)
    np.testing.assert_allclose(report.layer_cosines[names[0]].mean, (unit @ unit.transpose(0, 2, 1)).mean(axis=0), atol=1e-5)


def test_signal_and_intervals_of_random_gradients():
    rng = np.random.default_rng(0)
    true = np.array([[1.0] * 50, [0.0] * 50])
    rows = true + rng.normal(size=(400, 2, 50))
    products = rows @ rows.transpose(0, 2, 1)
    to_noise, is_clear = signal_of(products, rows.sum(axis=0) @ rows.sum(axis=0).T, np.ones((400, 2), bool))
    np.testing.assert_allclose(to_noise, [1.0, 0.0], atol=0.05)
    assert is_clear[0]
    one = cosine_statistics(products[:1])
    assert np.isnan(one.low).all() and np.isfinite(one.mean).all()
    few = cosine_statistics(products[:3])
    deviation = few.deviation[0, 1]
    np.testing.assert_allclose(few.high[0, 1] - few.mean[0, 1], 4.302653 * deviation / np.sqrt(3), rtol=1e-5)


def test_report_as_json_as_text_and_as_a_picture(diagnosed, monkeypatch):
    _, _, report = diagnosed
    as_json = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert as_json["heads"] == ["a", "b", "c"] and as_json["findings"][0]["kind"] == "healthy"
    np.testing.assert_allclose(as_json["norms"]["parameters"], report.norms["parameters"])
    assert as_json["label_means"][2] is None and as_json["suggestion"] == {}
    figure = report.plot()
    assert [axis.get_title(loc="left").split(":")[0] for axis in figure.axes] == [
        "Who moves the encoder",
        "How far heads have come",
        "Which heads agree",
    ]
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert f"{report.shares['parameters'][0]:.1%}" in texts and f"{report.cosines['parameters'][0, 1]:.2f}" in texts
    assert "signal/noise" in str(report) and str(report.findings[0]) in str(report)
    monkeypatch.setattr(drawing.importlib, "import_module", _not_installed)
    with pytest.raises(ImportError, match=r"`Diagnosis.plot` needs matplotlib.*pip install 'multihead\[plots\]'"):
        report.plot()


def _not_installed(name):
    raise ImportError(name)


def test_a_suggestion_as_json():
    trainer, data = planted.three_scales(0)
    report = trainer.diagnose(data)
    as_json = json.loads(json.dumps(report.to_dict()))
    assert as_json["suggestion"] == {"balancer": "NormFloor"} and as_json["equal_weights"] == report.equal_weights
