"""Kinds of values. TensorFlow and Keras have no stubs that hold for both stacks, so a name says what a signature takes."""

from __future__ import annotations

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
"""A `keras.metrics.Metric`."""

Loss = Any
"""A `keras.losses.Loss`."""

Callback = Any
"""A `keras.callbacks.Callback`."""

Nested = Any
"""A tensor, or a nested structure of tensors, as `tf.nest` takes them."""

Gradient = Any
"""A dense tensor, a `tf.IndexedSlices`, or None."""
