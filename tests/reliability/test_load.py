"""Load: long runs, many heads, large representations, long sequences, large vocabularies, many micro-batches."""

from __future__ import annotations

import gc
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping
from tests.helpers import tiny
from tests.helpers.cases import quick
from tests.helpers.reference import Reference

VOCABULARY, WIDTH = 200_000, 3


class Counting(keras.layers.Layer):
    """A dense layer that counts how often its Python runs: when it is built, and in each trace."""

    def __init__(self, units=4):
        super().__init__()
        self.dense = keras.layers.Dense(units, activation="tanh")
        self.calls = 0

    def call(self, inputs):
        self.calls += 1
        return self.dense(inputs)


def made(encoder, optimizer="sgd", heads=2, **options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(encoder)
    for k in range(heads):
        trainer.add_head(f"head_{k}", keras.layers.Dense(1), "mse")
    trainer.compile(optimizer, **options)
    return trainer


def batch_for(trainer, x, seed=0):
    rng = np.random.default_rng(seed)
    return x, {name: rng.normal(size=(len(x), 1)).astype("float32") for name in trainer.heads}


def memory():
    """The memory of this process, in MB."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.thorough
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the memory from /proc")
@pytest.mark.parametrize("updates", [300, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_many_updates_leave_the_memory_flat_and_trace_nothing_again(updates):
    trainer = made(Counting(), "adam", balancer="UPGrad", clip=clipping.ByGlobalNorm(1.0))
    x, y = batch_for(trainer, np.random.default_rng(0).normal(size=(8, 3)).astype("float32"))
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    trainer.fit(data, steps_per_epoch=updates // 6, verbose=0)
    calls, before = trainer.encoder.calls, memory()
    logs = trainer.fit(data, steps_per_epoch=updates // 6, epochs=5, verbose=0).history
    assert trainer.encoder.calls == calls and int(trainer.update_count) == 6 * (updates // 6)
    # TensorFlow 2.15 keeps 48 bytes of each tensor that a step returns forever, under a plain Keras model, too.
    of_tensorflow = 0 if hasattr(keras, "ops") else 48 * (len(logs) + 2) * updates / 2**20
    assert memory() - before < 30 + of_tensorflow


def traced(compute, *arguments):
    """How often the encoder's Python runs in a trace, and the graph's nodes, those of its functions included."""
    trainer = compute.__self__
    before = trainer.encoder.calls
    graph = tf.function(compute, autograph=False).get_concrete_function(*arguments).graph.as_graph_def()
    nodes = len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
    return trainer.encoder.calls - before, nodes


@pytest.mark.thorough
def test_micro_batches_are_one_graph_whatever_their_number():
    """A loop in the graph, not as many calls: neither the Python of the encoder runs more often nor does the graph grow."""

    def of(number):
        trainer = made(Counting(), heads=1, micro_batches=number, telemetry=None)
        batch = batch_for(trainer, np.ones([70, 3], "float32"))
        trainer.compute_gradients(batch)
        return traced(trainer.compute_gradients, batch)

    assert of(64) == of(3)


def test_accumulated_batches_are_one_graph_and_some_nodes_each():
    """What the graph has of each batch is where its tensors come from and go to."""

    def of(number):
        trainer = made(Counting(), heads=1, gradient_accumulation_steps=number, telemetry=None, run_eagerly=True)
        x, y = batch_for(trainer, np.ones([2, 3], "float32"))
        trainer.fit(x, y, verbose=0)
        return traced(trainer.train_step, {"window": ((x, y),) * number})

    (calls, nodes), (calls_of_many, nodes_of_many) = of(3), of(24)
    assert calls_of_many == calls
    assert (nodes_of_many - nodes) / 21 < 40 < nodes / 10


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    quick(1, [{"balance_at": "parameters", "balancer": "EqualNorms"}, {"balancer": "EqualNorms"}]),
    ids=str,
)
def test_sixty_four_heads(options):
    trainer = made(keras.layers.Dense(4), heads=64, run_eagerly=True, **options)
    x, y = batch_for(trainer, np.random.default_rng(0).normal(size=(16, 3)).astype("float32"))
    logs = trainer.fit(x, y, batch_size=16, epochs=2, verbose=0).history
    assert all(np.isfinite(values).all() for values in logs.values()) and int(trainer.update_count) == 2
    assert logs["loss"][1] < logs["loss"][0]


class Wide(keras.layers.Layer):
    """Repeats a number per example many times, times a weight each."""

    def build(self, shape):
        self.scales = self.add_weight(name="scales", shape=(102_400,), initializer="ones")

    def call(self, inputs):
        return inputs * tf.convert_to_tensor(self.scales)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"balancer": "EqualNorms"}, {"micro_batches": 4}], ids=str)
def test_a_representation_of_fifty_megabytes(options):
    trainer = made(Wide(), run_eagerly=True, **options)
    x, y = batch_for(trainer, np.random.default_rng(0).normal(size=(128, 1)).astype("float32"))
    gradient = trainer.compute_gradients((x, y))[0][0].numpy()
    parts, norms = [], []
    for name, head in trainer.heads.items():
        kernel, bias = (value.astype("float64") for value in tiny.values(head.module.weights))
        of_raw = 2 * (x @ np.ones([1, 102_400]) @ kernel + bias - y[name]) / len(x)
        parts.append((of_raw * x).sum() * kernel[:, 0])
        norms.append(np.sqrt((of_raw**2).sum() * (kernel**2).sum()))
    factors = np.mean(norms) / np.array(norms) if options.get("balancer") else [1.0, 1.0]
    np.testing.assert_allclose(gradient, sum(f * part for f, part in zip(factors, parts)), rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
def test_sequences_from_one_token_to_two_thousand_in_batches_of_one():
    """One trace for all lengths, and the updates of a hand-written tape."""
    trainer = tiny.trainer(keras.optimizers.SGD(0.05))
    lengths = (1, 2000, 17, 400)
    batches = [tiny.data(1, time, seed=time, missing=False) for time in lengths]
    by_hand = Reference(*tiny.modules(), keras.optimizers.SGD(0.05), tiny.WEIGHTS)
    trainer.compute_gradients(batches[0])
    by_hand.gradients(batches[:1])
    for own, other in zip(by_hand.variables, tiny.weights_of(trainer), strict=True):
        own.assign(other)
    for batch in batches:
        by_hand.update([batch])
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec([None] * a.ndim, a.dtype), batches[0])
    calls = []
    call = trainer.encoder.call
    trainer.encoder.call = lambda tokens: (calls.append(1), call(tokens))[1]
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
    trainer.fit(data.apply(tf.data.experimental.assert_cardinality(4)), verbose=0)
    assert len(calls) <= 6  # building, and a trace or two of the update
    for got, wanted in zip(tiny.weights_of(trainer), tiny.values(by_hand.variables), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


class Recording(keras.optimizers.SGD):
    """Records whether the gradient of the large table is sparse."""

    found: list[bool]

    def update_step(self, gradient, variable, *args):
        if variable.shape[0] == VOCABULARY:
            self.found.append(isinstance(gradient, tf.IndexedSlices))
        return super().update_step(gradient, variable, *args)


def large_tensors(graph):
    """The types of operations that make a tensor of the shape of the large table."""
    graph = graph.as_graph_def(add_shapes=True)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    shapes = [(node.op, shape) for node in nodes for shape in node.attr["_output_shapes"].list.shape]
    return {op for op, shape in shapes if [dim.size for dim in shape.dim] == [VOCABULARY, WIDTH]}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"balancer": "UPGrad", "micro_batches": 3},
        {"balancer": "UPGrad", "balance_at": "parameters", "telemetry": "full"},
        {"clip": clipping.ByGlobalNorm(0.1), "weighting": "LogLoss", "micro_batches": 2},
    ],
    ids=["sum", "representation", "parameters", "clip"],
)
def test_the_gradient_of_a_large_table_is_never_dense(options):
    embedding = keras.layers.Embedding(VOCABULARY, WIDTH)
    encoder = keras.Sequential([embedding, keras.layers.GlobalAveragePooling1D()])
    optimizer = Recording(0.1)
    optimizer.found = []
    trainer = made(encoder, optimizer, **options)
    rng = np.random.default_rng(0)
    x, y = batch_for(trainer, rng.integers(0, VOCABULARY, (8, 5)))
    trainer.compute_gradients((x, y))
    before = tiny.values(embedding.weights)[0]
    computed = tf.function(lambda batch: [gradient for gradient, _ in trainer.compute_gradients(batch)], autograph=False)
    assert large_tensors(computed.get_concrete_function((x, y)).graph) <= {"ReadVariableOp"}
    # The optimizer itself is not looked into: Keras 2's has dense slots.
    assert trainer.apply_gradients(trainer.compute_gradients((x, y))) and optimizer.found and all(optimizer.found)
    changed = np.flatnonzero((tiny.values(embedding.weights)[0] != before).any(axis=1))
    np.testing.assert_array_equal(changed, np.unique(x))
