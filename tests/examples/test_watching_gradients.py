"""The watch shows the gradients that a tape gives, their running averages, and which layer starves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import watching_gradients as program

pytestmark = pytest.mark.programs


def watched(activation="tanh", **options):
    """A trainer and its watch before any update."""
    trainer = program.make_trainer(activation, 0)
    batches = program.make_data(np.random.default_rng(1), 96, batch_size=32)
    watch = program.GradientWatch(batches, **options)
    watch.set_model(trainer)
    watch.on_train_begin()
    return trainer, watch, list(batches)


def by_tape(trainer, batch, heads):
    """Gradients of the encoder's variables from Keras's own losses."""
    inputs, targets = batch
    losses = {"kind": keras.losses.sparse_categorical_crossentropy, "size": keras.losses.mean_squared_error}
    with tf.GradientTape() as tape:
        predictions = trainer(inputs)
        loss = tf.add_n([tf.reduce_mean(losses[head](targets[head], predictions[head])) for head in heads])
        variables = [tensor_variable(variable) for variable in trainer.encoder.trainable_variables]
    return [gradient.numpy() for gradient in tape.gradient(loss, variables)]


def tensor_variable(variable):
    """The TensorFlow variable behind a Keras 3 variable."""
    value = getattr(variable, "value", variable)
    return variable if callable(value) else value


def test_names_are_those_of_the_variables():
    trainer, _, batches = watched()
    variables = [variable for _, variable in trainer.compute_gradients(batches[0])]
    owners = program.variable_names(trainer)
    assert list(owners)[:3] == ["layer_1/kernel", "layer_1/bias", "layer_2/kernel"]
    shapes = {name: tuple(variable.shape) for name, variable in zip(owners, variables)}
    assert len(owners) == len(variables) == 2 * program.LAYERS + 4
    assert shapes["layer_1/kernel"] == (8, 32) and shapes["layer_8/bias"] == (32,)
    assert (shapes["kind/kernel"], owners["kind/kernel"]) == ((32, 3), "kind")
    assert (shapes["size/bias"], owners["size/bias"]) == ((1,), "size")


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_running_averages_are_those_of_a_tape(momentum, without_graphs):
    trainer, watch, batches = watched(momentum=momentum)
    for _ in range(2):
        watch.measure()
    weights = np.array([momentum, 1.0]) / (1 + momentum)
    for head, heads in ((program.ALL, ("kind", "size")), ("kind", ("kind",)), ("size", ("size",))):
        steps = [by_tape(trainer, batches[i], heads) for i in (1, 2)]  # the first batch created the variables
        norms = [weights @ [np.linalg.norm(step[i]) for step in steps] for i in range(2 * program.LAYERS)]
        means = [np.linalg.norm(weights @ np.stack([np.ravel(s[i]) for s in steps])) for i in range(2 * program.LAYERS)]
        names = list(program.variable_names(trainer))[: 2 * program.LAYERS]
        assert [watch.norms(head)[name] for name in names] == pytest.approx(norms, rel=2e-4)
        assert [watch.mean_norms(head)[name] for name in names] == pytest.approx(means, rel=2e-4)
    assert "size/kernel" not in watch.norms("kind") and "size/kernel" in watch.norms(program.ALL)


def test_the_incremental_mean_is_the_mean():
    differences = program.largest_differences(0, 6)
    assert len(differences) == 2 and max(differences.values()) < 5e-6


def test_logs_history_and_tensorboard_tell_the_same(tmp_path):
    trainer = program.make_trainer("tanh", 0)
    data = program.make_data(np.random.default_rng(0), 128)
    watch = program.GradientWatch(data, every=2, folder=tmp_path)
    history = trainer.fit(data, epochs=3, verbose=0, shuffle=False, callbacks=[watch]).history
    assert watch.updates == [2, 4, 6]
    assert history["kind/layer_1/kernel/norm"] == pytest.approx(watch.history["kind", "layer_1/kernel"])
    scalars = {}
    for path in tmp_path.glob("events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                scalars[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    for (head, name), values in watch.history.items():
        assert [scalars[f"{head}/{name}/norm", step] for step in watch.updates] == pytest.approx(values)
    assert scalars["size/layer_8/bias/mean_norm", 6] == pytest.approx(watch.mean_norms("size")["layer_8/bias"])
    assert len(scalars) == 2 * 3 * len(watch.history)


def test_the_first_sigmoid_layers_starve(without_graphs):
    ratios = {}
    for activation in ("sigmoid", "tanh"):
        _, watch, _ = watched(activation)
        watch.measure()
        for head in ("kind", "size"):
            norms = [watch.norms(head)[name] for name in program.kernels()]
            ratios[activation, head] = norms[0] / norms[-1]
            assert activation == "tanh" or sorted(norms) == norms
    for head in ("kind", "size"):
        assert ratios["sigmoid", head] < 1e-3 and 0.1 < ratios["tanh", head] < 10


def test_the_program(tmp_path, capsys, without_graphs):
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    assert "sigmoid: layer_1/kernel has the smallest gradient" in capsys.readouterr().out
    assert (tmp_path / "watching_gradients.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "tensorboard").iterdir()} == {"sigmoid", "tanh"}
