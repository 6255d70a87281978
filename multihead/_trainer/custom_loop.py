"""Custom training loops: the gradients of an update as pairs with their variables, computed, measured and applied."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import tensorflow as tf

from multihead._data.batch import Batch, unpack
from multihead._data.reading import as_arrays, as_targets
from multihead._ground import replicas
from multihead._ground.keras import metric_variables, tensor_variable
from multihead._ground.optimizers import loss_scale
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Gradient, Nested, Variable
from multihead._ground.validation import quoted
from multihead._trainer.building import check_switches, runs_eagerly, unpacked
from multihead._trainer.keras_trainer import KerasTrainer
from multihead._trainer.state import TrainerState
from multihead._update.faults import Broken
from multihead._update.participation import Participation
from multihead._update.pipeline import compute_update
from multihead._update.scaling import fit_scalings_to
from multihead._update.spec import Plan, UpdateSpec
from multihead._update.update import Change, RollBack, Update
from multihead.diagnosis import Diagnosis
from multihead.diagnosis._measure import diagnose


class ComputedGradient(tuple[Gradient, Variable]):
    """A pair of gradient and variable that remembers its update, in whichever list it is."""

    update: Update | None = None  # None for a pair of another origin


class ComputedGradients(list[tuple[Gradient, Variable]]):
    """The pairs of an update that is not applied yet, with its losses.

    A list that TensorFlow makes, of what a `tf.function` returns, has no `update`.
    """

    def __init__(
        self, pairs: Iterable[tuple[Gradient, Variable]] = (), update: Update | None = None, heads: Sequence[str] = ()
    ) -> None:
        super().__init__(pairs)
        self._update, self._heads = update, heads

    @property
    def losses(self) -> dict[str, tf.Tensor]:
        """The heads' mean losses over their labels in the batch and on all replicas, by name, without the heads' weights.

        Float32 scalars; NaN for a head that is idle.
        """
        update = self._found()
        sums, counts = (replicas.all_reduce_sum(value) for value in (update.loss_sums, update.counts))
        with unchecked():
            means = where(counts > 0, tf.math.divide_no_nan(sums, counts), float("nan"))
        return {name: means[k] for k, name in enumerate(self._heads)}

    @property
    def loss(self) -> tf.Tensor:
        """The total loss of the update, a float32 scalar, with weights, regularization and `add_loss` losses."""
        return replicas.all_reduce_sum(self._found().total_loss)

    def _found(self) -> Update:
        if self._update is None:
            raise ValueError(
                "`losses` must be read where `compute_gradients` is called. Received: the list that a `tf.function` has "
                "returned. Return `pairs.losses` from the function, too."
            )
        return self._update


def to_apply(spec: UpdateSpec, grads_and_vars: Iterable[tuple[Gradient, Variable]], step: tf.Tensor) -> Change:
    """The update of pairs of gradient and variable after `step` updates; that of `compute_gradients` if they are its."""
    network, pairs = spec.network, list(grads_and_vars)
    by_variable = {id(tensor_variable(variable)): gradient for gradient, variable in pairs}
    known = [id(tensor_variable(variable)) for variable in network.variables.all]
    if not set(by_variable) <= set(known):
        raise ValueError(
            "`grads_and_vars` must contain only trainable variables of the trainer. Received: "
            f"{len(set(by_variable) - set(known))} others. Pass the variables returned by `compute_gradients`."
        )
    gradients = network.variables.like([by_variable.get(key) for key in known])
    broken = Broken.of_gradients(network, gradients)
    updates = {id(pair.update): pair.update for pair in pairs if isinstance(pair, ComputedGradient)}
    (update,) = updates.values() if len(updates) == 1 else (None,)
    if update is not None:  # the gradients may have been changed since
        broken = update.broken._replace(heads=update.broken.heads | broken.heads, variables=broken.variables)
        return replace(update, gradients=gradients, clipped=gradients, step=step, broken=broken)
    observers = [method.name for method in spec.methods.all if method.observes]
    if observers:
        warnings.warn(
            f"`grads_and_vars` do not come from `compute_gradients`, so that {quoted(observers)} learns nothing from this "
            "update. Pass its list, or a new list that keeps at least one of its pairs as it is.",
            UserWarning,
            stacklevel=4,
        )
    # Gradients of unknown origin train a group of variables if one of those in the group is not zero.
    groups = []
    for group in spec.groups:
        present = [gradients.all[i] for i in group.positions if gradients.all[i] is not None]
        values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in present]
        are_trained = [tf.reduce_any(tf.not_equal(tf.convert_to_tensor(value), 0)) for value in values]
        groups.append(group._replace(trained=tf.reduce_any(are_trained) if are_trained else tf.constant(False)))
    nobody = tf.zeros([len(network.heads)], tf.bool)
    has_any = tf.constant(any(gradient is not None for gradient in gradients.all))
    participation = Participation(nobody, nobody, has_any, tuple(groups))
    return Change(gradients=gradients, clipped=gradients, step=step, participation=participation, broken=broken)


def prepared_tensors(trainer: KerasTrainer, state: TrainerState, batch: Nested) -> Batch:
    """A batch of a custom training loop, as tensors."""
    named = unpack(tuple(batch), state.setup.all_names)
    inputs, weights = as_arrays("inputs", named.inputs), as_arrays("sample_weights", named.sample_weights)
    targets = {name: as_targets(f"targets[{name!r}]", value, is_batch=True) for name, value in named.targets.items()}
    return unpacked(trainer, state, Batch(inputs, targets, weights))


@contextmanager
def at_step(trainer: KerasTrainer, state: TrainerState) -> Iterator[UpdateSpec]:
    """How the next update is computed; within the context, a graph checks that it was traced for the current period."""
    spec = state.require_built(trains=True).spec
    if state.phase is None:
        check_switches(trainer, state)
    stage = trainer.stage
    following = spec.running.periods[stage + 1 :]
    checks = []
    if following and not tf.executing_eagerly():
        start, end = spec.running.periods[stage].start, following[0].start
        message = (
            f"This function was traced for the updates from {start} to {end - 1}, because learning rates have `Stages`. "
            "Pass `trainer.stage` to it as an argument, so that it is traced again in every period"
        )
        checks = [tf.debugging.assert_less(trainer.update_count, tf.constant(end, tf.int64), message=message)]
    with tf.control_dependencies(checks):
        yield spec.under(Plan(), stage)


def computed_gradients(trainer: KerasTrainer, state: TrainerState, batches: Sequence[Nested]) -> ComputedGradients:
    """The gradients of the update that some batches make: see `MultiHeadTrainer.compute_gradients`."""
    parts = [prepared_tensors(trainer, state, batch) for batch in batches]
    with at_step(trainer, state) as spec:
        update = compute_update(spec, parts, trainer.update_count, loss_scale(trainer.optimizer))
    network, gradients = spec.network, update.gradients.all
    if tf.executing_eagerly():
        for group in update.participation.groups:
            if not (update.participation.any if group.trained is None else group.trained):
                gradients = [None if i in group.positions else gradient for i, gradient in enumerate(gradients)]
    pairs = [ComputedGradient(pair) for pair in zip(gradients, network.variables.all)]
    for pair in pairs:
        pair.update = update
    return ComputedGradients(pairs, update, [head.name for head in network.heads])


def measured(trainer: KerasTrainer, state: TrainerState, batches: Iterable[Nested], limit: int) -> Diagnosis:
    """The gradients of some batches, measured without training: see `MultiHeadTrainer.diagnose`."""
    parts = [prepared_tensors(trainer, state, batch) for batch in itertools.islice(batches, limit)]
    if not parts:
        raise ValueError("`x` must contain at least one batch. Received: none. Pass batches as for `fit`.")
    spec, eagerly = state.require_built().spec, runs_eagerly(trainer)
    check_switches(trainer, state)
    scaled = [head.scaling for head in state.setup.heads if head.scaling is not None]
    scalings = [variable for scaling in scaled for variable in scaling.variables]
    functions_run_eagerly = tf.config.functions_run_eagerly()
    before = RollBack([*spec.network.state, *metric_variables(trainer.metrics), *map(tensor_variable, scalings)])
    try:
        fit_scalings_to(parts, spec, eagerly=eagerly)
        tf.config.run_functions_eagerly(eagerly)
        are_all = len(parts) < limit  # a further batch of a generator would be lost
        return diagnose(spec, parts, trainer.update_count, loss_scale(trainer.optimizer), are_all=are_all)
    finally:
        tf.config.run_functions_eagerly(functions_run_eagerly)
        before.restore()
