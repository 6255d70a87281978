"""Kinds of values. TensorFlow and Keras have no stubs that hold for both stacks, so a name says what a signature takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tensor = Any
"""A `tf.Tensor`, or what TensorFlow converts to one."""

Variable = Any
"""A `tf.Variable`, or a `keras.Variable` of Keras 3."""

Layer = Any
"""A `keras.layers.Layer`, a model included."""

Optimizer = Any
"""A `keras.optimizers.Optimizer`, of Keras 2 also a legacy one or one of Addons."""

Metric = Any
"""A `keras.metrics.Metric`; where `metrics=` is read, also what Keras makes one of: a name, a class or a function."""

Loss = Any
"""A `keras.losses.Loss`, or what Keras makes one of: a name, a configuration or a function."""

Callback = Any
"""A `keras.callbacks.Callback`."""

Nested = Any
"""A tensor, or a nested structure of tensors, as `tf.nest` takes them."""

Gradient = Any
"""A dense tensor, a `tf.IndexedSlices`, or None."""

Config = dict[str, Any]
"""The configuration of an object, from which Keras restores it."""

Logs = Any
"""What Keras passes to callbacks: metrics by name, or None."""

Node = Any
"""A call of a layer in a functional model."""

Shape = Any
"""A shape as Keras passes it to `build`, or a list of shapes."""

Function = Callable[..., Any]
"""A function that a user, or Keras, wrote."""
