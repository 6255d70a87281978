"""A head as users describe it: an immutable value whose arguments are checked when it is created."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields

import numpy as np
import tensorflow as tf

from multihead import losses, scaling
from multihead._ground.calls import call_users
from multihead._ground.layers import check_initialized
from multihead._ground.tensors import as_number, precision_of
from multihead._ground.types import Layer, Loss, Metric, Tensor
from multihead._ground.validation import as_python, is_number, quoted
from multihead.heads._labels import check_class_weight
from multihead.heads._metric_names import check_metrics
from multihead.heads._reads import Reads, check_reads
from multihead.heads._scaled import check_scaling
from multihead.rates import Rate, check_rate

_WITHOUT_TRAINING = ("module", "loss", "metrics", "weighted_metrics", "ignore_label", "reads")
"""The options of a head that is not trained: its output is predicted and measured."""

Weight = float | Callable[[tf.Tensor], Tensor]
"""How much a head's loss counts: a number, or a function of the step."""


@dataclass(frozen=True, eq=False)
class Head:
    """One head of a `MultiHeadTrainer`: a module that reads the representation, and the loss that it is trained on.

    A head cannot be changed; `dataclasses.replace(head, weight=0.5)` makes another one on the same module.
    Most heads need only the arguments up to `metrics`; the others are for special cases.

    Args:
        module: A Keras layer, model or function. Called as `module(representation)` or, with `teacher_forcing`, as
            `module(representation, targets)` in training and evaluation and `module.generate(representation)` in prediction.
            If its `call` has an argument `step`, which must have a default, the module receives there, in training, the
            number of updates applied so far, an int64 scalar. With `teacher_forcing`, the module may have a method
            `scores(representation)`, which returns a tensor of the shape of the output: metrics then compare the targets
            with this tensor instead of the output.
        loss: A Keras loss: a name, a `Loss`, or a function that returns one value per element, or a sum and a count; see
            `multihead.losses`. None: the head is not trained. Its output is predicted and exported; targets are optional,
            and metrics are computed if there are targets.
        weight: How much the head's loss counts: a number of at least 0, or a function of the step (an int64 scalar)
            that returns one. With a weight of 0 the head is idle.
        metrics: Keras metrics or their names; computed over labelled elements, as in Keras without sample weights, and
            logged as `{name}_{metric}`.

        teacher_forcing: Whether the module reads its targets.
        ignore_label: The label of elements whose label is missing; NaN always means missing.
        reads: The part of the representation that is passed to the module. None: all of it; a key or index of a dict,
            tuple or list: that entry; a tuple of keys: a path into a nest, so that `reads=("states", 0)` passes
            `representation["states"][0]`; a list of these: a list of the parts.
        weighted_metrics: Keras metrics or their names, computed with sample weights.
        class_weight: Weights of the labels by class number, in training and evaluation; 1 for a class without one.
            `multihead.class_weights(labels)` balances the classes. Metrics are not weighted by class.
        target_scaling: How targets such as prices and durations are scaled: `"standardize"`, `"log"`, one of
            `multihead.scaling`, or a Keras layer that can be inverted. The first `fit` learns the parameters of the scaling
            from the labels of its training data. The loss and the module see scaled targets; predictions, metrics and
            exports have the targets' own units (`docs/howto/units.md`).
        trains_encoder: Whether the head trains the encoder. With False the head is a probe: its module is trained on the
            representation, but the head has no effect on the encoder or on other heads.
        couples_rows: Whether the loss, or the module, compares the rows of a batch with each other: contrastive, triplet,
            ranking and survival losses, the hardest rows of a batch, statistics of a batch. None: undeclared. A loss of
            your own then gets all rows of a batch that have a label, and no others; you have to declare it if a batch is
            split, by `micro_batches` or replicas, or if a row may have only some of its labels. True: the module and the
            loss get these rows, and splitting is rejected. The loss may return one value per row, their mean, or a sum and a
            count. With `gradient_accumulation_steps`, only rows of the same batch are compared. False: a value of the
            loss depends only on the label and the predictions in its own position.
        learning_rate_multiplier: A factor for every change that the optimizer makes to the module's variables, including
            weight decay: a number (0 freezes the module), a function of the step, `LayerwiseDecay`, `ByPath` or `Stages`.
            The factor of the encoder's variables is `compile(encoder_learning_rate_multiplier=)`, even if the module
            contains them; the factor of variables that several heads share is the largest of the heads' factors.
        weight_decay_multiplier: The factor of the optimizer's `weight_decay` for the module's variables, in the same forms.

    Raises:
        ValueError: An argument is out of range, the loss or a metric is unknown, or `target_scaling` does not suit the loss
            or the module.
        TypeError: An argument has the wrong type.

    Example:
        >>> import keras
        >>> from multihead import Head, MultiHeadTrainer
        >>> head = Head(keras.layers.Dense(1), "mse", weight=0.5)
        >>> trainer = MultiHeadTrainer(keras.layers.Dense(8), heads={"price": head})
    """

    module: Layer
    loss: Loss
    _: KW_ONLY
    weight: Weight = 1.0
    metrics: Sequence[Metric] = ()
    teacher_forcing: bool = False
    ignore_label: float | None = None
    reads: Reads = None
    weighted_metrics: Sequence[Metric] = ()
    class_weight: Mapping[int, float] | None = None
    target_scaling: scaling.Standardize | Layer | str | None = None
    trains_encoder: bool = True
    couples_rows: bool | None = None
    learning_rate_multiplier: Rate = 1.0
    weight_decay_multiplier: Rate = 1.0

    def __post_init__(self) -> None:
        self._check(str(getattr(self.module, "name", type(self.module).__name__)).replace("/", "_") or "head")

    @classmethod
    def _of(cls, name: str, **arguments: object) -> Head:
        """A head whose errors have the name that the trainer gives it."""
        head = object.__new__(cls)
        vars(head).update({**{field.name: field.default for field in fields(cls)}, **arguments})
        head._check(name)
        return head

    def _check(self, name: str) -> None:
        """Checks all arguments, and copies lists and dicts, which the caller may change later."""
        if not callable(self.module):
            raise TypeError(
                f"`module` must be a Keras layer, a model or a function. Received: module={self.module!r}. "
                "Pass what turns the representation into the head's predictions."
            )
        check_initialized("module", self.module)
        loss = None if self.loss is None else losses.get(self.loss)
        weight = check_weight(self.weight)
        check_metrics({"metrics": self.metrics, "weighted_metrics": self.weighted_metrics}, name)
        class_weight = None if self.class_weight is None else check_class_weight(self.class_weight)
        checked = {
            "weight": weight,
            "metrics": tuple(self.metrics),
            "weighted_metrics": tuple(self.weighted_metrics),
            "teacher_forcing": bool(self.teacher_forcing),
            "ignore_label": check_ignore_label(self.ignore_label),
            "reads": check_reads(self.reads),
            "class_weight": class_weight,
            "trains_encoder": bool(self.trains_encoder),
            "couples_rows": None if self.couples_rows is None else bool(self.couples_rows),
            "learning_rate_multiplier": check_rate("learning_rate_multiplier", self.learning_rate_multiplier),
            "weight_decay_multiplier": check_rate("weight_decay_multiplier", self.weight_decay_multiplier),
        }
        vars(self).update(checked)
        if loss is not None:
            check_ignore_label(loss.ignore_label)
            check_scaling(name, self.target_scaling, loss, class_weight, self.module)
        else:
            changed = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
            training_options = [option for option in changed if option not in _WITHOUT_TRAINING]
            if training_options:
                raise ValueError(
                    f"`loss` of head {name!r} must not be None with options of training. Received: loss=None with "
                    f"{quoted(training_options)}. Leave them out, or pass a loss."
                )
        if callable(weight):
            weight_at(weight, tf.constant(0, tf.int64), name)  # raises if the function does not return a number


def check_heads(heads: Mapping[str, Head] | None) -> dict[str, Head]:
    """The heads that a trainer is created with, by name."""
    if isinstance(heads, Mapping | None):
        wrong = [f"{type(h).__name__} for {name!r}" for name, h in (heads or {}).items() if not isinstance(h, Head)]
    else:
        wrong = [type(heads).__name__]
    if wrong:
        raise TypeError(
            f"`heads` must be a dict of `Head` by name. Received: a {wrong[0]}. Pass, for example, "
            "heads={'price': Head(module, loss)}."
        )
    return dict(heads or {})


def check_weight(weight: object) -> Weight:
    """Returns a head's weight if it is a finite number of at least 0 or a function."""
    if callable(weight):
        return weight
    weight = as_python(weight)
    if not is_number(weight) or weight < 0:
        raise ValueError(
            "`weight` must be a finite number of at least 0, or a function of the step. "
            f"Received: weight={weight!r}. To leave a head out, pass 0; to change its weight while it is trained, call "
            "`trainer.set_weight` in a callback."
        )
    return float(weight)


def is_zero(weight: Weight) -> bool:
    """Whether a weight is a number that may be 0 in single precision: one below the smallest normal number."""
    return not callable(weight) and weight < float(np.finfo(np.float32).tiny)


def weight_at(weight: Weight, step: tf.Tensor, name: str) -> tf.Tensor:
    """A head's weight at a step, the number of updates applied so far: a scalar in at least float32."""
    value = call_users(weight, step) if callable(weight) else weight
    try:
        result = as_number(value)
    except (ValueError, TypeError):
        result = tf.constant("")
    if result.shape.rank == 0 and (result.dtype.is_floating or result.dtype.is_integer):
        return tf.cast(result, precision_of([result.dtype]))
    raise ValueError(
        f"`weight` of head {name!r} must give one number per update. Received: {value!r} from {weight!r}. Return a "
        "number or a scalar tensor."
    )


def check_ignore_label(label: object) -> float | None:
    """Returns an `ignore_label` if it is None or a number.

    One of NumPy stands for the decimal number that it shows, so that `np.float32(-999.9)` marks targets of float64, too.
    """
    is_numpy = isinstance(label, np.ndarray | np.generic) and label.dtype.kind == "f" and label.shape == ()
    label = float(str(label)) if is_numpy else as_python(label)
    if label is None or is_number(label):
        return label
    raise TypeError(
        f"`ignore_label` must be a finite number. Received: ignore_label={label!r}. Pass, say, -1; NaN always marks a "
        "missing label."
    )
