"""Trains several heads on one shared encoder in TensorFlow: one weighted total loss, one optimizer.

`MultiHeadTrainer` is a Keras model: `fit`, callbacks, `tf.distribute` and saving are Keras's own. It adds the update: exact
sums and counts, a weighting of the losses, a balancer for the gradients, and clipping and accumulation once per update.
"""

from multihead._ground import compatibility as _compatibility  # noqa: F401, I001 - explains an unsupported TensorFlow before anything imports it

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from multihead import accumulation, balancing, clipping, heads, losses, mixing, rates, scaling, schedules, telemetry
from multihead import trainer, weighting
from multihead._ground.calls import mark_functions as _mark_functions
from multihead._version import __version__
from multihead.heads import Head
from multihead.heads._labels import class_weights
from multihead.mixing import mix_datasets
from multihead.rates import ByPath, LayerwiseDecay, Stages
from multihead.trainer import MultiHeadTrainer

if _TYPE_CHECKING:  # the names of `_LATER`
    from multihead import callbacks, comparison, diagnosis, plots, testing
    from multihead.comparison._compare import compare

__all__ = [
    "ByPath",
    "Head",
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
    "diagnosis",
    "heads",
    "losses",
    "mix_datasets",
    "mixing",
    "models",
    "plots",
    "rates",
    "scaling",
    "schedules",
    "telemetry",
    "testing",
    "trainer",
    "weighting",
]

_LATER = ("callbacks", "comparison", "diagnosis", "models", "plots", "testing")
"""The modules that are imported where they are first used: a step of training needs none of them."""


_mark_functions(__name__)


def __getattr__(name: str) -> _Any:
    if name == "compare":
        return _importlib.import_module(f"{__name__}.comparison._compare").compare
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
