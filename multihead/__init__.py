"""Trains several heads on one shared encoder in TensorFlow: one weighted total loss, one optimizer.

`MultiHeadTrainer` is a Keras model: `fit`, callbacks, `tf.distribute` and saving are Keras's own. It adds the update: exact
sums and counts, a weighting of the losses, a balancer for the gradients, and clipping and accumulation once per update.
"""

from multihead import _compatibility  # noqa: F401, I001 - explains an unsupported TensorFlow before anything imports it

from multihead import accumulation, balancing, callbacks, clipping, comparison, losses, plots, scaling, schedules, weighting
from multihead.heads._labels.class_weights import class_weights
from multihead._version import __version__
from multihead.comparison._compare import compare
from multihead.mixing import mix_datasets
from multihead.rates import ByPath, LayerwiseDecay, Stages
from multihead.trainer import MultiHeadTrainer

__all__ = [
    "ByPath",
    "LayerwiseDecay",
    "MultiHeadTrainer",
    "Stages",
    "__version__",
    "accumulation",
    "balancing",
    "callbacks",
    "class_weights",
    "clipping",
    "compare",
    "comparison",
    "losses",
    "mix_datasets",
    "plots",
    "scaling",
    "schedules",
    "weighting",
]
