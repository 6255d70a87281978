"""Kinds of values in signatures. Type checkers skip TensorFlow and Keras, whose annotations differ by release.

`Any` stands only for what is nested, private in Keras, optional, or passed to and returned by the functions of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import keras
import tensorflow as tf

Tensor: TypeAlias = tf.Tensor
"""A tensor; in signatures of mathematics also what TensorFlow converts to one."""
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
"""A gradient, dense or of some rows. Where it may be missing, since no loss depends on the variable, it is `| None`."""
Variable: TypeAlias = "tf.Variable | keras.Variable"
"""A variable; Keras 3 has a class of its own around those of TensorFlow."""
Shape: TypeAlias = Any
"""A shape as Keras passes it to `build`, or a nest of shapes."""

Layer: TypeAlias = keras.layers.Layer
"""A Keras layer or model."""
Node: TypeAlias = Any
"""A call of a layer in a functional model; its class is private in both versions of Keras."""
Trainer: TypeAlias = keras.Model
"""A `MultiHeadTrainer`, in files that it imports."""
Optimizer: TypeAlias = keras.optimizers.Optimizer
Callback: TypeAlias = keras.callbacks.Callback
Callbacks: TypeAlias = Callback | Iterable[Callback] | None
"""What `fit` takes: one callback, several, or a `keras.callbacks.CallbackList`."""

Nested: TypeAlias = Any
"""A tensor, or a nested structure of tensors, as `tf.nest` takes them."""
Dataset: TypeAlias = Nested
"""What `fit` takes as `x`: arrays of all examples, or an iterable of batches."""
Config: TypeAlias = dict[str, Any]
"""Options, a configuration, or what is read from JSON, by name."""
Logs: TypeAlias = dict[str, Any] | None
"""Values by name, as Keras passes them to callbacks; None for none."""
ClassWeight: TypeAlias = Mapping[str, Mapping[int, float]] | Mapping[int, float]
"""Weights of labels by class number, by head name; for a single head also without its name."""
Results: TypeAlias = float | list[float] | dict[str, float]
"""Means over batches, as `evaluate` returns them."""
Function: TypeAlias = Callable[..., Any]
"""A function, or another callable, of a user or of TensorFlow."""

Loss: TypeAlias = keras.losses.Loss
LossIdentifier: TypeAlias = Loss | Function | Mapping[str, Any] | str | None
"""A Keras loss, or what Keras makes one of: a function, a configuration or a name. None: the head is not trained."""
Metric: TypeAlias = keras.metrics.Metric
MetricIdentifier: TypeAlias = Metric | Function | Mapping[str, Any] | str
"""A Keras metric, or what Keras makes one of: a function, a configuration or a name."""

Figure: TypeAlias = Any
"""A `matplotlib.figure.Figure`; matplotlib is optional."""
Axis: TypeAlias = Any
"""A `matplotlib.axes.Axes`."""
Comparison: TypeAlias = Any
"""A `multihead.comparison.Comparison`, in files that it imports."""
