"""Which layer receives no gradient, and how can you see it during training?

A callback keeps running averages of the gradients and of their norms, for every variable and every head. It adds them to
Keras's logs and writes them as TensorBoard scalars. In an encoder with eight sigmoid layers, hardly any gradient reaches the
first layers; with eight tanh layers, all of them receive one. The averages are computed by the library's
`GradientAccumulator`, which the first part compares with the mean of all gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer
from multihead.accumulation import GradientAccumulator

Array = np.ndarray[Any, Any]
LAYERS, UNITS, FEATURES, KINDS = 8, 32, 8, 3
ALL = "all"


def make_data(generator: np.random.Generator, size: int, batch_size: int = 64) -> tf.data.Dataset:
    """Batches of points `[n, 8]` with a kind (0, 1 or 2) and a size."""
    inputs = generator.normal(size=(size, FEATURES)).astype("float32")
    kind = np.digitize(inputs[:, 0] + inputs[:, 1], [-0.6, 0.6]).astype("int32")
    measure = (inputs[:, 2:3] * 1.5 - inputs[:, 3:4]).astype("float32")
    return tf.data.Dataset.from_tensor_slices((inputs, {"kind": kind, "size": measure})).batch(batch_size)


def make_trainer(activation: str, seed: int) -> MultiHeadTrainer:
    """A deep encoder with two heads; the same seed gives the same weights."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(UNITS, activation=activation, name=f"layer_{i + 1}") for i in range(LAYERS)]
    trainer = MultiHeadTrainer(keras.Sequential(layers))
    kind = keras.layers.Dense(KINDS, activation="softmax", name="kind")
    trainer.add_head("kind", kind, "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer.add_head("size", keras.layers.Dense(1, name="size"), "mse")
    trainer.compile(keras.optimizers.SGD(0.05), telemetry=None)
    return trainer


def variable_names(trainer: MultiHeadTrainer) -> dict[str, str]:
    """The owner (`encoder` or a head) of every trainable variable, in order, by names such as `layer_1/kernel`."""
    modules = {"encoder": trainer.encoder, **{name: head.module for name, head in trainer.heads.items()}}
    return {
        f"{layer.name}/{variable.name.split('/')[-1].removesuffix(':0')}": owner
        for owner, module in modules.items()
        for layer in getattr(module, "layers", [module])
        for variable in layer.trainable_variables
    }


class GradientWatch(keras.callbacks.Callback):
    """Measures the gradients of a `MultiHeadTrainer` during training: of all heads together, and of each head alone.

    To measure one head alone, the batch contains only its targets. For every variable the callback keeps two running
    averages with weights `momentum^age`: of the gradient, and of its norm. If the norm of the first is far below the
    second, the batches disagree.

    The running norms are added to the logs of every epoch as `{head}/{variable}/norm`. With a folder, they and the norms of
    the running gradients (`.../mean_norm`) are also written as TensorBoard scalars at every measurement.

    Args:
        batches: Batches to measure on, one at a time; repeated when they run out.
        every: Measure at every `every`-th update.
        momentum: At least 0 and below 1.
        folder: Folder for TensorBoard, or None.
    """

    def __init__(
        self, batches: tf.data.Dataset, *, every: int = 1, momentum: float = 0.9, folder: Path | None = None
    ) -> None:
        super().__init__()
        self.every = every
        self.momentum = momentum
        self.updates: list[int] = []
        self.history: dict[tuple[str, str], list[float]] = {}
        self.gradients: dict[str, GradientAccumulator] = {}
        self._norms: dict[str, GradientAccumulator] = {}
        self._compute: dict[str, Callable[..., list[Any]]] = {}
        self._batches = iter(batches.repeat())
        self._writer = None if folder is None else tf.summary.create_file_writer(str(folder))
        self._count = 0

    def on_train_begin(self, logs: Any = None) -> None:
        trainer = self.model
        variables = [variable for _, variable in trainer.compute_gradients(next(self._batches))]
        self._owners = variable_names(trainer)
        for head in (ALL, *trainer.heads):
            self._compute[head] = tf.function(lambda *batch: [gradient for gradient, _ in trainer.compute_gradients(batch)])
            self.gradients[head] = GradientAccumulator(variables, momentum=self.momentum)
            self._norms[head] = GradientAccumulator([tf.zeros([len(variables)])], momentum=self.momentum)
            self.history.update({(head, name): [] for name in self._seen_by(head)})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count += 1
        if self._count % self.every == 0:
            self.measure()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None and self.updates:
            logs.update({f"{head}/{name}/norm": values[-1] for (head, name), values in self.history.items()})

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()

    def measure(self) -> None:
        """Adds the next batch to the averages."""
        inputs, targets = next(self._batches)
        self.updates.append(self._count)
        for head, gradients in self.gradients.items():
            found = self._compute[head](inputs, targets if head == ALL else {head: targets[head]})
            gradients.add(found)
            self._norms[head].add([tf.stack([tf.zeros([]) if g is None else tf.norm(g) for g in map(_dense, found)])])
            for name, norm in self.norms(head).items():
                self.history[head, name].append(norm)
        if self._writer is not None:
            with self._writer.as_default(step=self._count):
                for head in self.gradients:
                    for kind, norms in (("norm", self.norms(head)), ("mean_norm", self.mean_norms(head))):
                        for name, norm in norms.items():
                            tf.summary.scalar(f"{head}/{name}/{kind}", norm)

    def norms(self, head: str) -> dict[str, float]:
        """Running averages of the gradient norms, by the variables that the head's gradient reaches."""
        return self._chosen(head, self._norms[head].mean()[0].numpy())

    def mean_norms(self, head: str) -> dict[str, float]:
        """Norms of the running averages of the gradients, by the same variables."""
        means = self.gradients[head].mean()
        return self._chosen(head, [0.0 if mean is None else tf.norm(mean).numpy() for mean in means])

    def _seen_by(self, head: str) -> list[str]:
        return [name for name, owner in self._owners.items() if head == ALL or owner in ("encoder", head)]

    def _chosen(self, head: str, values: Sequence[Any]) -> dict[str, float]:
        found = dict(zip(self._owners, values))
        return {name: float(found[name]) for name in self._seen_by(head)}


def _dense(gradient: Any) -> tf.Tensor | None:
    return None if gradient is None else tf.convert_to_tensor(gradient)


# ------------------------------------------------------------------------------------ checking the running averages


def largest_differences(seed: int, number: int) -> dict[str, float]:
    """The largest relative difference between the accumulator's means and the means of stored gradients, at any time.

    Args:
        seed: Seed of weights and data.
        number: Number of batches, of different sizes.
    """
    trainer = make_trainer("tanh", seed)
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 64, number)
    batches = [next(iter(make_data(generator, int(size)))) for size in sizes]
    pairs = [trainer.compute_gradients(batch) for batch in batches]
    kept = [np.concatenate([np.ravel(gradient) for gradient, _ in found]).astype("float64") for found in pairs]
    differences = {}
    for name, momentum in (("mean", None), ("running average, momentum 0.9", 0.9)):
        accumulator = GradientAccumulator([variable for _, variable in pairs[0]], momentum=momentum)
        worst = 0.0
        for t, found in enumerate(pairs):
            accumulator.add([gradient for gradient, _ in found], count=int(sizes[t]))
            weights = sizes[: t + 1] * (momentum or 1.0) ** np.arange(t, -1, -1)
            expected = np.average(kept[: t + 1], axis=0, weights=weights)
            actual = np.concatenate([np.ravel(mean) for mean in accumulator.mean()])
            worst = max(worst, float(np.abs(actual - expected).max() / np.abs(expected).max()))
        differences[name] = worst
    return differences


# ------------------------------------------------------------------------------------------------------- results


def train(
    activation: str, session: Session, examples: int, epochs: int, advance: Callable[[], None]
) -> tuple[GradientWatch, dict[str, list[float]]]:
    """Trains an encoder with the callback; returns the callback and Keras's history."""
    data = make_data(np.random.default_rng(session.seed), examples)
    watched = make_data(np.random.default_rng(session.seed + 1), examples)
    watch = GradientWatch(watched, every=4, folder=session.folder / "tensorboard" / activation)
    step = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: advance())
    trainer = make_trainer(activation, session.seed)
    history = trainer.fit(data, shuffle=False, epochs=epochs, verbose=0, callbacks=[watch, step])
    return watch, history.history


def kernels() -> list[str]:
    """Names of the encoder's kernels, in the order of the layers."""
    return [f"layer_{i + 1}/kernel" for i in range(LAYERS)]


TITLES = {"sigmoid": "sigmoid: gradients vanish", "tanh": "tanh: they do not"}


@_style.styled
def draw(watches: dict[str, GradientWatch]) -> Any:
    """Draws running norms by layer during training, and by layer and head at the end."""
    from matplotlib import colormaps

    figure, axes = _style.new_figure(1, 3, 4.0, sharey=True)
    labels: dict[str, Any] = {}
    for axis, (activation, watch) in zip(axes, watches.items()):
        for i, name in enumerate(kernels()):
            color = colormaps["viridis"](i / (LAYERS - 0.5))
            axis.plot(watch.updates, watch.history[ALL, name], color=color, label=f"layer {i + 1}")
        axis.set(yscale="log", xlabel="update", title=TITLES[activation])
        ends = [(watch.history[ALL, name][-1], i) for i, name in enumerate(kernels())]
        shown = ends if activation == "sigmoid" else [ends[0]]
        texts = [
            (value, f"layer {i + 1}" if len(shown) > 1 else "all layers", colormaps["viridis"](i / (LAYERS - 0.5)))
            for value, i in shown
        ]
        labels[activation] = (axis, watch.updates[-1], texts)
        for watched, style in zip(watch.model.heads, ("-o", "--s")):
            norms = [watch.norms(watched)[name] for name in kernels()]
            color = _style.RED if activation == "sigmoid" else _style.BLUE
            axes[2].plot(range(1, LAYERS + 1), norms, style, color=color, ms=4)
            place = {"xytext": (8, -14)} if watched == "kind" else {"xytext": (-4, 8), "ha": "right"}
            options = {"textcoords": "offset points", "color": color, "fontsize": 9, **place}
            axes[2].annotate(f"{activation}, {watched}", (4, norms[3]), **options)
    axes[0].set_ylabel("gradient norm")
    axes[2].set(xlabel="encoder layer", title="for both heads")
    for axis, last, texts in labels.values():
        _style.label_ends(axis, last, texts)
    return figure


def run(session: Session) -> None:
    """Checks the averages, trains both encoders and shows the gradients of their layers."""
    number, examples, epochs = (5, 256, 2) if session.quick else (30, 1024, 25)
    for name, difference in largest_differences(session.seed, number).items():
        session.say(f"The incremental {name} differs from that of all stored gradients by at most {difference:.1e}.")
    watches, histories = {}, {}
    with session.progress("training both encoders", 2 * epochs) as advance:
        for activation in ("sigmoid", "tanh"):
            watches[activation], histories[activation] = train(activation, session, examples, epochs, advance)
    rows = []
    for i, name in enumerate(kernels()):
        row = [f"layer {i + 1}"]
        for watch in watches.values():
            norms, means = watch.norms(ALL), watch.mean_norms(ALL)
            row += [f"{norms[name]:.1e}", f"{norms[name] / norms[kernels()[-1]]:.1e}", f"{means[name] / norms[name]:.2f}"]
        rows.append(row)
    columns = ["kernel", *(name for activation in watches for name in (activation, "relative", "agreement"))]
    session.table("Norms of the encoder's gradients, running averages at the end of training", columns, rows)
    session.say("Relative: divided by the norm of the last layer.")
    session.say("Agreement: norm of the running gradient divided by the running norm; 1 if all batches agree.")
    for activation, history in histories.items():
        starved = min(kernels(), key=watches[activation].norms(ALL).__getitem__)
        last = {key: history[key][-1] for key in ("kind_accuracy", "size_loss", f"{ALL}/{starved}/norm")}
        figures = ", ".join(f"{key} {value:.3g}" for key, value in last.items())
        session.say(f"{activation}: {starved} has the smallest gradient; logs of the last epoch: {figures}.")
    session.say(f"TensorBoard: tensorboard --logdir {session.folder / 'tensorboard'}")
    session.save(draw(watches))


def main(arguments: list[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    return run_program("watching_gradients", __doc__, run, arguments, needs=("matplotlib", "rich", "tensorboard"))


if __name__ == "__main__":
    sys.exit(main())
