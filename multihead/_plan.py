"""What a trainer knows: its heads, what `compile` was told, and what is built for the data it has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from multihead import balancing, schedules
from multihead import weighting as weightings
from multihead._backward import Network
from multihead._data import Batch
from multihead._gradients import Cut
from multihead._keras import (
    AUTOGRAPH,
    build_optimizer,
    call_module,
    created_outside_of_graphs,
    is_legacy_optimizer,
    keras_mask,
    optimizer_takes_over,
)
from multihead._meeting import KeptCoefficients
from multihead._step import Predictions, Recipe
from multihead._update import Ownership
from multihead._validation import check_choice, check_positive_whole, quoted
from multihead.clipping import AbstractClipping
from multihead.heads import Head
from multihead.telemetry import LEVELS, Trackers

CUTS = ("representation", "parameters")
_INSTEAD = {
    "clipnorm": "clip=clipping.ByNorm({value})",
    "clipvalue": "clip=clipping.ByValue({value})",
    "global_clipnorm": "clip=clipping.ByGlobalNorm({value})",
    "gradient_accumulation_steps": "accumulate_steps={value}",
}


def check_optimizer(optimizer: Any) -> Any:
    """Returns a Keras optimizer for an optimizer or its name.

    Raises:
        ValueError: It is unknown, of Keras's old kind, or set to clip or to accumulate itself.
    """
    received = optimizer
    try:
        optimizer = keras.optimizers.get(optimizer)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"`optimizer` must be a Keras optimizer or its name. Received: optimizer={received!r}. Pass, say, 'adam'."
        ) from error
    if is_legacy_optimizer(optimizer):
        raise ValueError(
            "`optimizer` must not be one of `keras.optimizers.legacy`. "
            f"Received: optimizer={received!r}. Use the optimizer of the same name in `keras.optimizers`."
        )
    for option, value in optimizer_takes_over(optimizer).items():
        raise ValueError(
            f"`optimizer` must leave clipping and accumulation to the trainer, which does them once per update, on what "
            f"all replicas gathered. Received: an optimizer with {option}={value!r}. Leave it out and pass "
            f"`{_INSTEAD[option].format(value=value)}` to `compile`."
        )
    return optimizer


class Settings(NamedTuple):
    """The arguments of `compile`, checked."""

    weighting: Any
    balancer: Any
    balance_at: str
    balance_every: int
    schedule: schedules.AbstractSchedule
    clip: AbstractClipping | None
    micro_batches: int
    accumulate_steps: int
    telemetry: str

    @classmethod
    def checked(
        cls,
        head_names: Sequence[str],
        weighting: Any,
        balancer: Any,
        balance_at: str,
        balance_every: int,
        schedule: Any,
        clip: Any,
        micro_batches: int,
        accumulate_steps: int,
        telemetry: str,
    ) -> Settings:
        """Checks the arguments of `compile` and binds them to the heads; see there."""
        weighting = weightings.get(weighting)
        if weighting is not None:
            weighting.bind(head_names)
        balancer = balancing.get(balancer)
        check_choice("balance_at", balance_at, CUTS)
        if balancer is not None:
            if balance_at not in balancer.levels:
                raise ValueError(
                    f"`balance_at` must be one of {quoted(balancer.levels)} for {type(balancer).__name__}. "
                    f"Received: balance_at={balance_at!r}. Change it, or choose another balancer."
                )
            balancer.bind(head_names)
        schedule = schedules.Together() if schedule is None else schedule
        if not isinstance(schedule, schedules.AbstractSchedule):
            raise TypeError(
                f"`schedule` must be one of multihead.schedules. Received: schedule={schedule!r}. "
                "Pass, say, schedules.Alternate({'price': 1, 'reply': 9})."
            )
        schedule.bind(head_names)
        if clip is not None and not isinstance(clip, AbstractClipping):
            raise TypeError(
                f"`clip` must be one of multihead.clipping. Received: clip={clip!r}. Pass, say, clipping.ByGlobalNorm(5.0)."
            )
        balance_every = check_positive_whole("balance_every", balance_every)
        micro_batches = check_positive_whole("micro_batches", micro_batches)
        accumulate_steps = check_positive_whole("accumulate_steps", accumulate_steps)
        check_choice("telemetry", telemetry, LEVELS)
        if balancer is not None:
            _check_gathering(balancer, balance_at, balance_every, micro_batches * accumulate_steps)
        return cls(
            weighting, balancer, balance_at, balance_every, schedule, clip, micro_batches, accumulate_steps, telemetry
        )


def _check_gathering(balancer: Any, balance_at: str, balance_every: int, num_slices: int) -> None:
    """Checks that a balancer which needs more than inner products can have it, however the update is gathered."""
    name = type(balancer).__name__
    if balancer.needs != "gradients":
        return
    if balance_every > 1:
        raise ValueError(
            f"`balance_every` must be 1 for {name}, which gives no coefficients that could be used again. "
            f"Received: balance_every={balance_every}. Leave it out."
        )
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if balance_at == "representation" and (num_slices > 1 or num_replicas > 1):
        raise ValueError(
            f"`balance_at` must be 'parameters' for {name} with several slices, batches or replicas: it needs the "
            "gradients themselves, and at the representation each slice has only its own. Received: "
            f"balance_at='representation' with {num_slices} slices and {num_replicas} replicas. Change it, or process "
            "each batch at once."
        )


def _measure(settings: Settings) -> str:
    """What to measure at the cut where no balancer measures more."""
    if settings.schedule.reads_gramian:
        return "gramian"
    reads_norms = settings.weighting is not None and settings.weighting.reads_norms
    return "norms" if reads_norms or settings.telemetry == "norms" else "none"


class Plan:
    """The heads of a trainer, its settings, and what was built for the data."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.settings: Any = None
        self.specs: Any = None
        # A `Recipe`, an `Ownership` and `Trackers` once data have been seen, None before.
        self.recipe: Any = None
        self.ownership: Any = None
        self.trackers: Any = None
        self._predictions: dict[str, Predictions] = {}
        self._wants_every_head = False
        self._num_leaves = 0

    @property
    def is_configured(self) -> bool:
        """Whether `compile` was called since a head was last added or dropped."""
        return self.settings is not None

    def add(self, head: Head) -> None:
        """Adds a head; whatever was configured and built without it is dropped."""
        self.heads.append(head)
        self._forget()
        self.settings = None

    def drop(self, name: str) -> None:
        """Takes a head away; whatever was configured and built with it is dropped."""
        self.heads = [head for head in self.heads if head.name != name]
        self._predictions.pop(name, None)
        if self.specs is not None:
            inputs, *labels = self.specs
            self.specs = (inputs, *({key: by_head[key] for key in by_head if key != name} for by_head in labels))
        self._forget()
        self.settings = None

    def is_built_for(self, name: str) -> bool:
        """Whether data were seen since the head was added, so that its variables exist."""
        return name in self._predictions

    def configure(self, settings: Settings) -> None:
        """Takes checked settings; what depends on them is built anew."""
        self._forget()
        self.settings = settings

    def _forget(self) -> None:
        self.recipe = self.ownership = self.trackers = None

    def get_config(self) -> dict[str, Any]:
        """The settings by the names of `compile`'s arguments."""
        return {} if self.settings is None else self.settings._asdict()

    @contextmanager
    def requiring_every_head(self) -> Iterator[None]:
        """Within, a batch must have targets for every head."""
        self._wants_every_head = True
        try:
            yield
        finally:
            self._wants_every_head = False

    def check_every_head(self, targets: Mapping[str, Any]) -> None:
        """Checks that data to `fit` have targets for every head.

        Raises:
            ValueError: A head's key stands nowhere in the data.
        """
        absent = [head.name for head in self.heads if head.name not in targets]
        if self._wants_every_head and absent:
            raise ValueError(
                f"The targets must have a key for every head, but the head {quoted(absent)} has none in the data, so it "
                f"would never be trained. Received: targets for {quoted(targets)}; the heads are "
                f"{quoted(head.name for head in self.heads)}. Correct the key, or add targets that are `ignore_label` "
                "or NaN where there is no label."
            )

    def lacks(self, targets: Mapping[str, Any]) -> bool:
        """Whether something that a batch with these targets needs is not built yet."""
        return self.recipe is None or any(name not in self._predictions for name in targets)

    def build(self, encoder: Any, optimizer: Any, specs: Any, kept: KeptCoefficients | None) -> None:
        """Creates all variables of modules, metrics and, if given, the optimizer, for batches of some specs.

        Args:
            encoder: The encoder.
            optimizer: The optimizer, or None before `compile`.
            specs: A `Batch` of `tf.TensorSpec`, or the tuple of its fields.
            kept: Where coefficients are kept that serve several updates, or None.

        Raises:
            ValueError: A head's module cannot be built since the batch has no targets for it.
        """
        batch = Batch(*specs)
        predictions = self._trace_predictions(encoder, batch)
        self.specs = tuple(batch)
        for head in self.heads:
            if head.name in predictions:
                spec, masked = predictions[head.name]
                self._predictions[head.name] = Predictions(spec.shape.rank, masked)
                if head.name in batch.targets:
                    head.build_metrics(batch.targets[head.name], spec)
        if optimizer is None or self.settings is None:
            return
        settings = self.settings
        if settings.weighting is not None:
            settings.weighting.build((len(self.heads),))
        network = Network.of(encoder, self.heads, settings.weighting)
        if settings.balancer is not None:
            settings.balancer.build(self._shapes_of_rows(network, settings))
        if self.trackers is None:
            self.ownership = Ownership.of(network, build_optimizer(optimizer, network.variables))
            self.trackers = Trackers(
                self.heads, network.variables[: network.num_trained_by_losses], settings.telemetry, settings.weighting
            )
        self.recipe = Recipe(
            network=network,
            predictions=tuple(self._predictions[head.name] for head in self.heads),
            weighting=settings.weighting,
            balancer=settings.balancer,
            at_parameters=settings.balancer is not None and settings.balance_at == "parameters",
            schedule=settings.schedule,
            micro_batches=settings.micro_batches,
            measure=_measure(settings),
            kept=kept,
        )

    def _shapes_of_rows(self, network: Network, settings: Settings) -> Any:
        """What a balancer is built for: the shape of one matrix, or those of the gradients themselves if it needs them."""
        num_heads = len(self.heads)
        if settings.balancer.needs != "gradients":
            return (num_heads, None)
        if settings.balance_at == "representation":
            return [(num_heads, None)] * self._num_leaves
        return [(num_heads, variable.shape.num_elements()) for variable in network.tensors(range(network.num_encoder))]

    def _trace_predictions(self, encoder: Any, batch: Batch) -> dict[str, tuple[tf.TensorSpec, bool]]:
        """The spec of each head's predictions and whether Keras masks them; builds the modules, computes nothing."""
        masked: dict[str, bool] = {}

        def forward(inputs: Any, targets: dict[str, Any]) -> dict[str, Any]:
            cut = Cut(call_module(encoder, inputs, training=False))
            self._num_leaves = len(cut.leaves)
            outputs = {}
            for head in self.heads:
                if head.teacher_forcing and head.name not in targets:
                    if head.name not in self._predictions:
                        raise ValueError(
                            f"The head {head.name!r} reads its targets, so the first batch must have targets for it. "
                            f"Received: targets for {quoted(targets)}. Show the trainer a batch with all heads first."
                        )
                    continue
                outputs[head.name] = head.predict(cut.representation, targets.get(head.name), training=False)
                masked[head.name] = keras_mask(outputs[head.name]) is not None
            return outputs

        traceable = tf.function(forward, autograph=AUTOGRAPH)
        created_outside_of_graphs(lambda: traceable.get_concrete_function(batch.inputs, batch.targets))
        traced = tf.function(forward, autograph=AUTOGRAPH).get_concrete_function(batch.inputs, batch.targets)
        return {
            name: (tf.TensorSpec(output.shape, output.dtype), masked[name])
            for name, output in traced.structured_outputs.items()
        }
