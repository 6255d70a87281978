"""Kinds of values. TensorFlow and Keras have no stubs that hold for both stacks, so a name says what a signature takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tensor = Any  # a `tf.Tensor`, or what TensorFlow converts to one
Variable = Any  # a `tf.Variable`, or a `keras.Variable` of Keras 3
Layer = Any  # a `keras.layers.Layer`, a model included
Optimizer = Any  # a `keras.optimizers.Optimizer`, of Keras 2 also a legacy one or one of Addons
Metric = Any  # a `keras.metrics.Metric`, or what Keras makes one of: a name, a class or a function
Loss = Any  # a `keras.losses.Loss`, or what Keras makes one of: a name, a configuration or a function
Callback = Any  # a `keras.callbacks.Callback`
Nested = Any  # a tensor, or a nested structure of tensors, as `tf.nest` takes them
Gradient = Any  # a dense tensor, a `tf.IndexedSlices`, or None
Dataset = Any  # what `fit` takes as `x`: arrays of all examples, or an iterable of batches
Trainer = Any  # a `MultiHeadTrainer`, in files that it imports
Logs = Any  # values by name, as Keras passes them to callbacks and returns them; None for none
Config = dict[str, Any]  # options, a configuration, or what is read from JSON, by name
Given = Any  # what a user passes, in whatever form, before it is checked
Rate = Any  # a factor of the learning rate or the weight decay, as `multihead.rates` takes it
Function = Callable[..., Any]  # a function, or another callable, of a user or of TensorFlow
Figure = Any  # a `matplotlib.figure.Figure`
Axis = Any  # a `matplotlib.axes.Axes`, or what is drawn on it
Node = Any  # a call of a layer in a functional model
Shape = Any  # a shape as Keras passes it to `build`, or a list of shapes
