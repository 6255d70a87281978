"""Custom training loops: the gradients of an update as pairs with their variables, computed, measured and applied."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import tensorflow as tf

from multihead._data.batch import Batch, unpack
from multihead._data.call import read_batches
from multihead._data.data import batches_of_update
from multihead._data.reading import as_arrays
from multihead._ground import replicas
from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import loss_scale
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Dataset, Gradient, Nested, Variable
from multihead._ground.validation import check_choice, check_positive_whole, readable_errors
from multihead._trainer.options import BALANCE_AT
from multihead._trainer.state import TrainerState
from multihead._update.apply import apply_update, clip
from multihead._update.evaluate import HeadGradients, gradients_by_head
from multihead._update.faults import Broken
from multihead._update.participation import Participation
from multihead._update.pipeline import compute_update
from multihead._update.scaling import check_known, fit_scalings_to
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
        """The mean loss of each head over its labels in the batch and on all replicas, by name, without its weight.

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
    """The update that pairs make after `step` updates: that of the pairs of `compute_gradients` among them, if it is one."""
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
    # Gradients of unknown origin train what one of them, of the same group of variables, is not zero for.
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


class CustomLoops(TrainerState):
    """The parts of an update for training loops other than `fit`, and measurements of gradients."""

    @readable_errors()
    def compute_gradients(self, batch: Nested) -> ComputedGradients:
        """Computes the balanced, unclipped gradients of the total loss on a batch, for a custom training loop.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors. With
                `gradient_accumulation_steps`, a list of up to that many of these tuples, whose examples make one update.

        Returns:
            Pairs of gradient and variable for all trainable variables. Gradients are dense tensors or `tf.IndexedSlices`,
            without loss scaling; None for a variable that no loss depends on, and for the variables of an idle head (zeros
            in a graph, where it is not known yet which heads are idle). Each pair records which heads are active and what
            `apply_gradients` restores if it skips the update, in this list, a copy or another list. A new pair, as in
            `[(clip(g), v) for g, v in pairs]`, does not; to keep the record, replace only some of the pairs. The list also
            has `loss`, the total loss, and `losses`, each head's mean loss by name (NaN while it is idle): float32 scalars,
            over all replicas.

        Raises:
            ValueError: The batch has targets for an unknown head, or there are more or fewer batches than
                `gradient_accumulation_steps` allows.
        """
        options = self._assert_ready("compute_gradients")
        check_known(self._setup.heads, "compute_gradients")
        batches = [self._prepared(part) for part in batches_of_update(batch, options.gradient_accumulation_steps)]
        with self._at_step() as spec:
            update = compute_update(spec, batches, self.update_count, loss_scale(self.optimizer))
        network, gradients = spec.network, update.gradients.all
        if tf.executing_eagerly():
            for group in update.participation.groups:
                if not (update.participation.any if group.trained is None else group.trained):
                    gradients = [None if i in group.positions else gradient for i, gradient in enumerate(gradients)]
        pairs = [ComputedGradient(pair) for pair in zip(gradients, network.variables.all)]
        for pair in pairs:
            pair.update = update
        return ComputedGradients(pairs, update, [head.name for head in network.heads])

    @readable_errors()
    def head_gradients(self, batch: Nested, at: str = "representation") -> HeadGradients:
        """Computes each head's gradients on a batch, without training: no variable changes.

        All heads with labels in the batch take part, whatever the schedule. A row is the gradient of the head's weighted
        mean loss; a balancer of the trainer is not applied.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors.
            at: `"representation"`: the gradients with respect to each floating-point leaf of the representation, with the
                leaf's shape, `[batch, ...]`, and for complex numbers another axis of real and imaginary parts; on several
                replicas, of the replica's own examples. `"parameters"`: those with respect to each trainable variable of
                the encoder, over all replicas.

        Returns:
            A dict from head name to a list of gradients: dense tensors, `tf.IndexedSlices`, or None where the head does not
            depend on the leaf or the variable. It also has `gramian` (`[num_heads, num_heads]` float64, over all replicas),
            `norms` (`[num_heads]`), `cosines` (`[num_heads, num_heads]`, NaN for a head without a gradient), and `own`:
            pairs of gradient and variable for the variables of the heads' own modules. Read these in the `tf.function` in
            which the gradients are computed. `balancing.balance` takes it as it is.

        Raises:
            ValueError: The batch has targets for an unknown head, or `at` is another string.

        Example:
            >>> import keras
            >>> from multihead import MultiHeadTrainer
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
            >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
            >>> trainer.compile("adam")
            >>> targets = {"price": tf.ones([8, 1]), "size": tf.zeros([8, 1])}
            >>> batch = tf.ones([8, 3]), targets
            >>> gradients = trainer.head_gradients(batch, at="parameters")
            >>> [tuple(gradient.shape) for gradient in gradients["price"]]
            [(3, 4), (4,)]
            >>> tuple(gradients.cosines.shape)
            (2, 2)
        """
        self._assert_ready("head_gradients")
        check_known(self._setup.heads, "head_gradients")
        check_choice("at", at, BALANCE_AT)
        prepared = self._prepared(batch)
        with self._at_step() as spec:
            return gradients_by_head(spec, at, prepared, self.update_count, loss_scale(self.optimizer))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Gradient, Variable]]) -> tf.Tensor:
        """Clips and applies gradients as one update, for a custom training loop.

        Args:
            grads_and_vars: Pairs of gradient and variable: the list that `compute_gradients` returned, or your own. A
                variable with None, or without a pair, does not change, and neither do its optimizer slots. In a list of
                your own, a head whose gradients are all None or zero is idle: its variables and slots do not change.

        Returns:
            Whether the update was applied: False if a gradient is not finite, if no head is active, or if a list of your own
            has no gradient.

        Raises:
            ValueError: The trainer is not built yet, or a variable does not belong to it.
        """
        self._assert_ready("apply_gradients")
        with self._at_step() as spec:
            update = to_apply(spec, grads_and_vars, self.update_count)
            return apply_update(spec, self.optimizer, clip(spec, update))

    @readable_errors()
    def diagnose(
        self, x: Dataset, y: Nested = None, *, sample_weight: Nested = None, batch_size: int | None = None, batches: int = 32
    ) -> Diagnosis:
        """Measures the heads' gradients without training, and suggests what to change.

        Computes norms, shares and cosines of the heads' gradients at the representation and at the parameters, for each
        batch, in training mode, for all heads regardless of the schedule, and before balancing. Variables and metrics do
        not change. A `target_scaling` that no `fit` has learned yet is that of the labels in these batches.

        Args:
            x: The data, as for `fit`; or a list of batches.
            y: The targets by head name, if `x` are arrays.
            sample_weight: The sample weights by head name, if `x` are arrays.
            batch_size: The batch size, if `x` are arrays; 32 by default.
            batches: The maximum number of batches to measure.

        Returns:
            The measurements, the findings and `suggestion`, keyword arguments for `compile`: `NormFloor()` if it would act,
            and a `target_scaling` for heads in raw units. `print` shows all of it.

        Raises:
            ValueError: There is no batch, `batches` is below 1, or arguments are incompatible.
            TypeError: `x` is neither arrays with `y` nor an iterable of batches.
        """
        self._assert_ready("diagnose")
        limit = check_positive_whole("batches", batches)
        data = read_batches(x, y, sample_weight, self._setup.all_names, batch_size)
        prepared = [self._prepared(batch) for batch in itertools.islice(data, limit)]
        if not prepared:
            raise ValueError("`x` must contain at least one batch. Received: none. Pass batches as for `fit`.")
        spec = self._require_built().spec
        metrics = [tensor_variable(variable) for metric in self.metrics for variable in metric.variables]
        scaled = [head.scaling for head in self._setup.heads if head.scaling is not None]
        scalings = [variable for scaling in scaled for variable in scaling.variables]
        runs_eagerly = tf.config.functions_run_eagerly()
        before = RollBack([*spec.network.state, *metrics, *map(tensor_variable, scalings)])
        try:
            fit_scalings_to(prepared, spec, eagerly=self._runs_eagerly)
            tf.config.run_functions_eagerly(runs_eagerly or self._runs_eagerly)
            return diagnose(spec, prepared, self.update_count, loss_scale(self.optimizer))
        finally:
            tf.config.run_functions_eagerly(runs_eagerly)
            before.restore()

    def _prepared(self, batch: Nested) -> Batch:
        """A batch of a custom training loop, as tensors."""
        named = unpack(tuple(batch), self._setup.all_names)
        return self._unpack(tuple(as_arrays(part, value) for part, value in named._asdict().items()))

    @contextmanager
    def _at_step(self) -> Iterator[UpdateSpec]:
        """How the next update is computed; within the context, a graph checks that it was traced for the current period."""
        spec = self._require_built(trains=True).spec
        stage = self.stage
        following = spec.running.periods[stage + 1 :]
        checks = []
        if following and not tf.executing_eagerly():
            start, end = spec.running.periods[stage].start, following[0].start
            message = (
                f"This function was traced for the updates from {start} to {end - 1}, because learning rates have `Stages`. "
                "Pass `trainer.stage` to it as an argument, so that it is traced again for each period"
            )
            checks = [tf.debugging.assert_less(self.update_count, tf.constant(end, tf.int64), message=message)]
        with tf.control_dependencies(checks):
            yield spec.under(Plan(), stage)
