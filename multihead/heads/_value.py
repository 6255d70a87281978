"""A head as users describe it: an immutable value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from multihead.heads._named import NamedHead
from multihead.heads._weights import Weight


@dataclass(frozen=True, eq=False)
class Head:
    """One head of a `MultiHeadTrainer`: a module that reads the representation, and the loss that it is trained on.

    A head cannot be changed; `dataclasses.replace(head, weight=0.5)` makes another one on the same module.
    Most heads need the first group of arguments at most; the second is for special cases.

    Args:
        module: A Keras layer, model or function. Called as `module(representation)` or, with `teacher_forcing`, as
            `module(representation, targets)` in training and evaluation and `module.generate(representation)` in prediction.
            If its `call` has an argument `step`, it gets the number of updates applied so far there in training. With
            `teacher_forcing`, metrics compare the result of its method `scores(representation)`, if it has one, with the
            targets, in place of the output for the loss, whose shape it has.
        loss: A Keras loss: a name, a `Loss`, or a function that returns one value per element, or a sum and a count; see
            `multihead.losses`. None: the output is predicted and exported, and its metrics are computed where there are
            targets, which it does not need; but it is not trained.
        weight: How much the head's loss counts: a number of at least 0, or a function of the step (an int64 scalar)
            that returns one. With a weight of 0 the head is idle.
        metrics: Keras metrics or their names; computed over labelled elements and logged as `{name}_{metric}`.
        teacher_forcing: Whether the module reads its targets.
        ignore_label: The label of elements whose label is missing; NaN always means missing.
        reads: The part of the representation that is passed to the module. None: all of it; a key or index of a dict,
            tuple or list: that entry; a tuple of keys: a path into a nest, so that `reads=("states", 0)` passes
            `representation["states"][0]`; a list of these: a list of the parts.
        class_weight: Weights of the labels by class number, in training and evaluation; 1 for a class without one.
            `multihead.class_weights(labels)` balances the classes. Metrics are not weighted by class.
        target_scaling: How targets such as prices and durations are scaled: `"standardize"`, `"log"`, one of
            `multihead.scaling`, or a Keras layer that can be inverted. The first `fit` learns the numbers from the
            labels of its training data. The loss and the module have scaled targets; predictions, metrics and exports
            have the targets' own units (`docs/howto/units.md`).
        trains_encoder: Whether the encoder is trained by the head. With False the head is a probe: its module is trained
            on the representation as it is, and nothing else changes because of it.
        couples_rows: Whether the loss, or the module, compares the rows of a batch with each other: contrastive, triplet,
            ranking and survival losses. Both then get the labelled rows of each batch, whole, and no others. The loss may
            return one value per row, their mean, or a sum and a count. With `gradient_accumulation_steps`, too, only rows of
            the same batch are compared.
        learning_rate_multiplier: The factor of every step that is applied to the module's variables, weight decay included.
            A number, of which 0 freezes the module; a function of the step; `LayerwiseDecay`, `ByPath` or `Stages`. The
            encoder's variables have that of `compile(encoder_learning_rate_multiplier=)` even if the module contains them;
            variables that several heads share have the largest of their factors.
        weight_decay_multiplier: The factor of the optimizer's `weight_decay` for the module's variables, in the same forms.

    Raises:
        ValueError: An argument is out of range, the loss or a metric is unknown, or `target_scaling` does not suit the loss.
        TypeError: An argument has the wrong type.

    Example:
        >>> import keras
        >>> from multihead import Head, MultiHeadTrainer
        >>> head = Head(keras.layers.Dense(1), "mse", weight=0.5)
        >>> trainer = MultiHeadTrainer(keras.layers.Dense(8), heads={"price": head})
    """

    module: Callable[..., Any]
    loss: Any
    _: KW_ONLY
    weight: Weight = 1.0
    metrics: Sequence[Any] = ()
    teacher_forcing: bool = False
    ignore_label: float | None = None
    reads: Any = None
    class_weight: Mapping[int, float] | None = None
    target_scaling: Any = None
    trains_encoder: bool = True
    couples_rows: bool = False
    learning_rate_multiplier: Any = 1.0
    weight_decay_multiplier: Any = 1.0

    def __post_init__(self) -> None:
        named(str(getattr(self.module, "name", type(self.module).__name__)).replace("/", "_") or "head", self)  # checks all
        for name, copied in (("metrics", tuple), ("class_weight", dict)):  # their lists and dicts may change later
            if getattr(self, name) is not None:
                object.__setattr__(self, name, copied(getattr(self, name)))


def named(name: str, head: Head) -> NamedHead:
    """A head under a name, as a trainer holds it."""
    return NamedHead(name, **vars(head))


def value_of(head: NamedHead) -> Head:
    """The value of a trainer's head, with its present weight and what was learned of its target scaling."""
    value = object.__new__(Head)  # checked already, and perhaps asked for in a graph, where a check must not create metrics
    for name, each in head.arguments.items():
        object.__setattr__(value, name, each)
    return value


def check_heads(heads: Any) -> dict[str, Head]:
    """The heads that a trainer is created with, by name.

    Raises:
        TypeError: They are not a mapping, or a value of it is not a `Head`.
    """
    if not isinstance(heads, Mapping | None):
        raise TypeError(
            f"`heads` must be a dict of `Head` by name. Received: a {type(heads).__name__}. Pass, for example, "
            "heads={'price': Head(module, loss)}."
        )
    for name, head in (heads or {}).items():
        if not isinstance(head, Head):
            raise TypeError(
                f"`heads` must be a dict of `Head` by name. Received: a {type(head).__name__} for {name!r}. Pass, for "
                "example, heads={'price': Head(module, loss)}."
            )
    return dict(heads or {})
