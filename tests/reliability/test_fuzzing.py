"""Random data, options and orders of calls: a trainer equals one written by hand after each call, or says what is wrong.

After every call that may be made, the weights are those of `tests.helpers.twin`; every call that may not ends in an error of
the library, and leaves the trainer as it was.
"""

from __future__ import annotations

import warnings

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from multihead import MultiHeadTrainer, clipping, losses, schedules
from tests.helpers import tiny
from tests.helpers.twin import UNITS, Head, Twin, kind_of

LOSSES = {
    "tag": losses.SequenceCrossentropy(),
    "kind": "sparse_categorical_crossentropy",
    "size": "mse",
    "flags": "binary_crossentropy",
}
ACTIVATIONS = {"kind": "softmax", "flags": "sigmoid"}
INTEGERS = ("int8", "int32", "int64", "uint8")
FLOATS = ("float32", "float64", "float16")
RATES = {"sgd": 0.3, "momentum": 0.1, "adam": 0.05}

OPTIONS = {
    "optimizer": st.sampled_from(list(RATES)),
    "balancer": st.sampled_from([None, None, "EqualNorms", "UPGrad", "MGDA"]),
    "balance_at": st.sampled_from(["representation", "parameters"]),
    "weighting": st.sampled_from([None, None, "LogLoss"]),
    "clip": st.sampled_from([None, ("ByGlobalNorm", 0.3), ("ByNorm", 0.2), ("ByValue", 0.1)]),
    "micro_batches": st.sampled_from([1, 1, 2, 3]),
    "gradient_accumulation_steps": st.sampled_from([1, 1, 2, 3]),
    "alternates": st.sampled_from([False, False, True]),
    "on_nonfinite": st.sampled_from(["skip", "raise"]),
    "encoder_learning_rate_multiplier": st.sampled_from([1.0, 1.0, 0.5, 0.0]),
    "telemetry": st.sampled_from([None, "norms", "full"]),
}
BAD_OPTIONS = [
    {"balancer": "Best"}, {"weighting": "Best"}, {"weighting": 3}, {"balance_at": "heads"}, {"micro_batches": 0},
    {"micro_batches": 1.5}, {"gradient_accumulation_steps": -1}, {"clip": 1.0}, {"on_nonfinite": "stop"}, {"telemetry": "all"},
    {"optimizer": "best"}, {"optimizer": None}, {"balance_every": 0}, {"max_skipped_updates": 0}, {"loss": "mse"},
    {"encoder_learning_rate_multiplier": -1}, {"encoder_learning_rate_multiplier": "high"}, {"check_labels": 1}, {"steps": 2},
    {"head_schedule": "alternate"}, {"head_schedule": schedules.Alternate({"other": 1})}, {"encoder_weight_decay_multiplier": 0.5},
]  # fmt: skip
BAD_HEADS = [
    {"weight": -1.0}, {"weight": float("nan")}, {"weight": "much"}, {"loss": "best"}, {"loss": 3}, {"name": ""}, {"name": 3},
    {"learning_rate_multiplier": -1}, {"learning_rate_multiplier": "low"}, {"ignore_label": "x"}, {"metrics": "accuracy"},
    {"module": 3}, {"reads": "other"}, {"class_weight": {0: -1.0}}, {"metrics": ["best"]},
]  # fmt: skip


class Session:
    """A trainer and its twin, on which random calls are made.

    Args:
        data: Hypothesis's source of choices.
        folder: An empty folder.
        longest: The most heads at the start, and the most calls.
    """

    def __init__(self, data, folder, longest):
        self.data, self.folder, self.longest = data, folder, longest
        self.rng = np.random.default_rng(self.pick(st.integers(0, 10**6)))
        self.twin = Twin(self.pick(st.booleans()))
        keras.utils.set_random_seed(int(self.rng.integers(10**6)))
        self.trainer = self.with_encoder()
        self.log = []
        for _ in range(self.pick(st.integers(1, self.longest))):
            self.add_head()
        self.compile()

    def pick(self, strategy):
        return self.data.draw(strategy)

    def choose(self, *values):
        return self.pick(st.sampled_from(values))

    # ------------------------------------------------------------------------------------------------ making trainers

    def with_encoder(self):
        dense = keras.layers.Dense(4, activation="tanh")
        return MultiHeadTrainer(
            keras.Sequential([keras.layers.Embedding(7, 3, mask_zero=True), dense]) if self.twin.has_tokens else dense
        )

    def put_head(self, trainer, name):
        head, kind = self.twin.heads[name], kind_of(name)
        module = keras.layers.Dense(UNITS[kind], activation=ACTIVATIONS.get(kind))
        marks = {"ignore_label": -1} if kind == "kind" else {}
        trainer.add_head(
            name, module, LOSSES[kind], weight=head.weight, learning_rate_multiplier=head.learning_rate, **marks
        )

    def compile_like(self, trainer):
        found = dict(self.twin.options)
        rate, name = found.pop("rate"), found.pop("optimizer")
        optimizers = {
            "sgd": lambda: keras.optimizers.SGD(rate),
            "momentum": lambda: keras.optimizers.SGD(rate, momentum=0.9),
            "adam": lambda: keras.optimizers.Adam(rate, epsilon=1e-3),
        }
        if found.pop("alternates"):
            found["head_schedule"] = schedules.Alternate(dict.fromkeys(self.twin.heads, 1))
        if found["clip"]:
            kind, limit = found["clip"]
            found["clip"] = getattr(clipping, kind)(limit)
        if not found["balancer"]:
            del found["balance_at"]
        if found["on_nonfinite"] != "raise":
            found["max_skipped_updates"] = None
        trainer.compile(optimizers[name](), run_eagerly=True, **found)

    # ------------------------------------------------------------------------------------------------ checks

    def refused(self, call):
        """A call that must end in an error of the library, and change nothing."""
        before = tiny.weights_of(self.trainer)
        try:
            call()
        except (ValueError, TypeError) as error:
            assert "Received:" in str(error), f"{type(error).__name__}: {error}"
        else:
            raise AssertionError("no error")
        for one, other in zip(before, tiny.weights_of(self.trainer), strict=True):
            np.testing.assert_array_equal(one, other)

    def compare(self):
        """The trainer's weights and counts are the twin's."""
        if self.twin.encoder is None:
            return
        assert int(self.trainer.update_count) == self.twin.step
        pairs = [("encoder", self.trainer.encoder, self.twin.encoder)]
        pairs += [(name, self.trainer.heads[name].module, head.values) for name, head in self.twin.heads.items()]
        for name, module, wanted in pairs:
            for got, value in zip(tiny.values(module.weights), wanted or [], strict=wanted is not None):
                assert np.isfinite(got).all()
                np.testing.assert_allclose(got, value, rtol=2e-3, atol=2e-4, err_msg=name)
        self.twin.read(self.trainer, tiny.values)

    # ------------------------------------------------------------------------------------------------ data

    def batch(self, every_head=True, rows=None):
        """Inputs, targets and sample weights that are allowed."""
        rows = rows or self.pick(st.integers(1, 6))
        if self.twin.has_tokens:
            x = self.rng.integers(0, 7, (rows, 3)).astype(self.choose("int32", "int64", "uint8", "float32"))
        else:
            x = (self.rng.integers(-6, 7, (rows, 3)) / 4).astype(self.choose(*FLOATS))
        targets, weights, lead = {}, {}, x.shape if self.twin.has_tokens else (rows,)
        for name in self.twin.heads:
            if every_head or self.pick(st.integers(0, 3)):
                targets[name] = self.targets(kind_of(name), lead)
                if self.pick(st.integers(0, 3)) == 0:
                    weights[name] = self.sample_weight(kind_of(name), lead)
        if not targets:
            targets[name] = self.targets(kind_of(name), lead)
        return x, targets, weights

    def targets(self, kind, lead):
        if kind in ("tag", "kind"):
            dtype = self.choose(*INTEGERS, "float32") if kind == "tag" else self.choose("int8", "int64", "float32")
            low = self.choose(*([0, 1] if kind == "tag" else [-1, 0]))
            return self.rng.integers(low, UNITS[kind], lead).astype(dtype)
        shape = (*lead, UNITS[kind])
        missing = self.rng.random(shape) < self.choose(0.0, 0.3, 1.0)
        if kind == "flags":
            dtype = self.choose("bool", *INTEGERS, *FLOATS)
            values = self.rng.integers(0, 2, shape)
        else:
            shape = self.choose(shape, shape[:-1])
            dtype, missing = self.choose("int32", "int8", *FLOATS), missing.reshape(shape)
            values = self.rng.integers(-9, 9, shape) / (4 if dtype in FLOATS else 1)
            if dtype in ("float32", "float64") and self.pick(st.integers(0, 7)) == 0:
                values.flat[0] = 1e35
        return np.where(missing, np.nan, values).astype(dtype) if dtype in FLOATS else values.astype(dtype)

    def sample_weight(self, kind, lead):
        shape = self.choose(lead[:1], lead)
        dtype = self.choose("float32", "float64", "int32", "bool")
        return self.rng.choice([0, 1, 2] if dtype != "bool" else [0, 1], shape).astype(dtype)

    def spoiled(self, x, y, s):
        """The same batch with something that is wrong."""
        name = self.choose(*y)
        kind, target = kind_of(name), y[name]
        numbers = target.astype("float32")
        seen = np.maximum(x, 1) if self.twin.has_tokens else x  # the weight of what is masked does not matter
        choices = {
            "rows": lambda: (x, {**y, name: np.concatenate([target, target[:1]])}, s),
            "unknown": lambda: (x, {**y, "other": target}, s),
            "rank": lambda: (x, {**y, name: np.stack([numbers] * 3, -1)[..., None]}, s),
            "text": lambda: (x, {**y, name: np.full(target.shape, "a")}, s),
            "objects": lambda: (x, {**y, name: np.full(target.shape, None)}, s),
            "negative weight": lambda: (seen, {**y, name: self.labelled(kind, target)}, {name: -np.ones(len(x))}),
            "weight NaN": lambda: (seen, {**y, name: self.labelled(kind, target)}, {name: np.full(len(x), np.nan)}),
            "rows of weights": lambda: (x, y, {name: np.ones(len(x) + 1, "float32")}),
            "unknown weights": lambda: (x, y, {"other": np.ones(len(x), "float32")}),
            "no targets": lambda: (x, None, {}),
            "empty": lambda: (x[:0], {n: t[:0] for n, t in y.items()}, {}),
        }
        if not self.twin.has_tokens:
            choices["infinite"] = lambda: (x, {**y, name: np.full_like(numbers, np.inf)}, {})
            choices["width"] = lambda: (x[:, :2], y, s)
            if kind in ("tag", "kind"):
                choices["class"] = lambda: (x, {**y, name: np.full_like(numbers, 9)}, {})
                choices["fraction"] = lambda: (x, {**y, name: np.full_like(numbers, 0.5)}, {})
        if len(self.twin.heads) > 1:
            choices["no names"] = lambda: (x, target, {})
        wrong = self.choose(*choices)
        hypothesis.note(f"wrong: {wrong} of {name}")
        return choices[wrong]()

    @staticmethod
    def labelled(kind, target):
        """Targets none of which is missing."""
        return np.ones_like(target)

    # ------------------------------------------------------------------------------------------------ calls

    def add_head(self):
        kind = self.choose(*UNITS)
        name = f"{kind}_{len(self.twin.heads)}" if kind in self.twin.heads else kind
        if name in self.twin.heads:
            return self.refused(lambda: self.trainer.add_head(name, keras.layers.Dense(1), "mse"))
        self.twin.heads[name] = Head(self.choose(1.0, 1.0, 0.5, 2.0, 0.0), self.choose(1.0, 1.0, 0.5, 0.0))
        self.put_head(self.trainer, name)
        self.twin.options = None

    def add_bad_head(self):
        arguments = {"name": "bad", "module": keras.layers.Dense(1), "loss": "mse", **self.choose(*BAD_HEADS)}
        if "reads" in arguments:
            return
        self.refused(lambda: self.trainer.add_head(**arguments))

    def remove_head(self):
        if self.pick(st.integers(0, 3)) == 0:
            return self.refused(lambda: self.trainer.remove_head("other"))
        if len(self.twin.heads) > 1:
            name = self.choose(*self.twin.heads)
            self.trainer.remove_head(name)
            del self.twin.heads[name]
            self.twin.options = None

    def compile(self):
        options = {name: self.pick(strategy) for name, strategy in OPTIONS.items()}
        options["rate"] = RATES[options["optimizer"]]
        if not any(head.learning_rate for head in self.twin.heads.values()):
            options["encoder_learning_rate_multiplier"] = 1.0  # something must be trained
        if options["encoder_learning_rate_multiplier"] == 0:
            options["balance_at"] = "representation"
        self.twin.compile(options)
        self.compile_like(self.trainer)

    def compile_badly(self):
        options = {"optimizer": "sgd", **self.choose(*BAD_OPTIONS)}
        self.refused(lambda: self.trainer.compile(run_eagerly=True, **options))

    def set_weight(self):
        name, value = self.choose(*self.twin.heads), self.choose(0.0, 0.5, 1.0, -1.0, float("inf"))
        if not 0 <= value < 9:
            return self.refused(lambda: self.trainer.set_weight(name, value))
        self.trainer.set_weight(name, value)
        self.twin.heads[name].weight = value

    def ready(self, call, *batch):
        """Whether the trainer is compiled; otherwise the call must be refused."""
        if self.twin.options is None:
            self.refused(call)
            return False
        if self.twin.encoder is None or any(head.values is None for head in self.twin.heads.values()):
            x, y, s = self.batch()
            self.trainer.compute_gradients([(x, y, s)])
            self.twin.read(self.trainer, tiny.values)
        return True

    def fit(self):
        x, y, s = self.batch(rows=self.pick(st.integers(1, 9)))
        size, epochs = self.pick(st.integers(1, 5)), self.choose(1, 1, 2)
        number = (self.twin.options or {}).get("gradient_accumulation_steps", 1)
        form = self.choose("arrays", "tensors", "dataset", "generator")
        s = {name: s.get(name, np.ones(len(x), "float32")) for name in y} if s and form != "arrays" else s
        is_spoiled = self.pick(st.integers(0, 5)) == 0
        if is_spoiled:
            x, y, s = self.spoiled(x, y, s)
            form = "arrays"

        def call():
            if form in ("arrays", "tensors"):
                convert = (lambda each: each) if form == "arrays" else tf.convert_to_tensor
                arrays = tf.nest.map_structure(convert, (x, y, s))
                self.trainer.fit(
                    arrays[0],
                    arrays[1],
                    sample_weight=arrays[2] or None,
                    batch_size=size,
                    epochs=epochs,
                    shuffle=False,
                    verbose=0,
                )
            else:
                parts = (x, y, s) if s else (x, y)
                if form == "dataset":
                    source, steps = tf.data.Dataset.from_tensor_slices(parts).batch(size), {}
                else:
                    cut = [tiny.rows(parts, start, start + size) for start in range(0, len(x), size)]
                    windows = -(-len(cut) // number)
                    source, steps = (each for _ in range(epochs) for each in cut), {"steps_per_epoch": windows}
                    if epochs > 1 and len(cut) % number:
                        source, steps = tf.data.Dataset.from_tensor_slices(parts).batch(size), {}
                self.trainer.fit(source, epochs=epochs, shuffle=False, verbose=0, **steps)

        if not self.ready(call):
            return
        if is_spoiled:
            self.refused(call)
            return
        cut = [tiny.rows((x, y, s), start, start + size) for start in range(0, len(x), size)]
        windows = [cut[start : start + number] for start in range(0, len(cut), number)]
        self.follow(call, windows * epochs)

    def follow(self, call, windows):
        """Makes a call that trains, and the same updates by hand."""
        raises = any(self.twin.update(window) for window in windows[:1])
        for window in windows[1:]:
            raises = raises or self.twin.update(window)
        if raises:
            with pytest.raises(ValueError, match="Received:"):
                call()
        else:
            call()

    def train_on_batch(self):
        if (self.twin.options or {}).get("gradient_accumulation_steps", 1) > 1:
            x, y, s = self.batch()
            return self.refused(lambda: self.trainer.train_on_batch(x, y, sample_weight=s or None))
        self.one_batch(lambda x, y, s: self.trainer.train_on_batch(x, y, sample_weight=s or None))

    def custom_loop(self):
        self.one_batch(lambda *batch: self.trainer.apply_gradients(self.trainer.compute_gradients([batch])))

    def one_batch(self, train):
        x, y, s = self.batch(every_head=False)
        is_spoiled = self.pick(st.integers(0, 3)) == 0
        batch = self.spoiled(x, y, s) if is_spoiled else (x, y, s)
        call = lambda: train(*batch)  # noqa: E731
        if self.ready(call):
            is_empty = len(batch[0]) == 0 and batch[1] is not None  # nothing to train on, and no error
            self.refused(call) if is_spoiled and not is_empty else self.follow(call, [[batch]])

    def evaluate(self):
        x, y, s = self.batch(rows=self.pick(st.integers(1, 9)), every_head=False)
        found = {}
        call = lambda: found.update(  # noqa: E731
            self.trainer.evaluate(x, y, sample_weight=s or None, batch_size=3, verbose=0, return_dict=True)
        )
        if self.ready(call):
            call()
            for name, (loss, count) in self.twin.losses([(x, y, s)]).items():
                if count and np.abs(loss) < 1e30:
                    np.testing.assert_allclose(found[f"{name}_loss"], loss, rtol=2e-3, atol=1e-4, err_msg=name)

    def predict(self):
        x, _, _ = self.batch()
        if self.twin.encoder is None or any(head.values is None for head in self.twin.heads.values()):
            return
        found = self.trainer.predict(x, verbose=0)
        for name, wanted in self.twin.predictions(x).items():
            np.testing.assert_allclose(found[name], wanted, rtol=2e-3, atol=2e-4, err_msg=name)

    def diagnose(self):
        x, y, s = self.batch()
        call = lambda: self.trainer.diagnose(x, y, sample_weight=s or None)  # noqa: E731
        if self.ready(call):
            call()

    def save(self):
        path = str(self.folder / "trainer.keras")
        self.trainer.save(path)
        self.trainer = keras.models.load_model(path)
        assert list(self.trainer.heads) == list(self.twin.heads)

    def load_weights(self):
        if not self.ready(lambda: self.trainer.fit()):
            return
        path = str(self.folder / "a.weights.h5")
        self.trainer.save_weights(path)
        fresh = self.with_encoder()
        for name in self.twin.heads:
            self.put_head(fresh, name)
        self.compile_like(fresh)
        x, y, _ = self.batch()
        fresh.compute_gradients([(x, y)])
        fresh.load_weights(path)
        self.trainer = fresh

    CALLS = (
        "add_head", "add_bad_head", "remove_head", "compile", "compile", "compile_badly", "set_weight", "fit", "fit", "train_on_batch",
        "train_on_batch", "custom_loop", "custom_loop", "evaluate", "predict", "diagnose", "save", "load_weights",
    )  # fmt: skip

    def run(self):
        for _ in range(self.pick(st.integers(1, self.longest))):
            name = self.choose(*self.CALLS)
            hypothesis.note(f"{name}, {self.twin.options}, { {n: h.weight for n, h in self.twin.heads.items()} }")
            getattr(self, name)()
            self.compare()


@pytest.mark.parametrize(("cases", "longest"), [(5, 2), pytest.param(2000, 4, marks=pytest.mark.thorough)])
def test_every_call_does_what_it_promises_or_is_refused(tmp_path, cases, longest):
    @hypothesis.seed(2 + hasattr(keras, "ops"))  # other cases on each stack
    @hypothesis.settings(
        max_examples=cases, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    @hypothesis.given(st.data())
    def check(data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of skipped updates, and of weights without effect
            Session(data, tmp_path, longest).run()

    check()
