"""The state machine: calls of a trainer in any order, after each of which its twin in NumPy must have the same state."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from multihead import MultiHeadTrainer, balancing, callbacks
from tests.helpers.keras_twin import Batches
from tests.helpers.tiny import tensor_variable
from tests.sequences import twin as twins
from tests.sequences.data import COLUMNS, INPUTS, as_given, batches_of, drawn, parts
from tests.sequences.follower import MOMENTS, Follower
from tests.sequences.options import CLIPS, RATES, WEIGHTS, optimizer_of, schedule_of
from tests.sequences.twin import PARTS, Head, Optimizer, Options, Twin

UNITS = 3
NAMES = ("a", "b", "c", "d")
TOLERANCES = {"float32": 1e-5, "float64": 1e-9}
"""By dtype, how far a number may be from the twin's, relative to the largest of its array."""


class Stop(Exception):  # noqa: N818 - no error of anything
    """Ends a `fit`."""


def dense_layers(module: Any) -> list[Any]:
    """The dense layers of a module, in order."""
    if isinstance(module, keras.layers.Dense):
        return [module]
    return [
        layer
        for each in module.layers
        for layer in ([each] if isinstance(each, keras.layers.Dense) else getattr(each, "layers", []))
    ]


class Machine(RuleBasedStateMachine):
    """A trainer and its twin."""

    eager: bool | None = None  # None: drawn
    counts = {"sequences": 0, "rules": 0, "updates": 0}  # noqa: RUF012 - how much this process has tried so far

    def __init__(self) -> None:
        super().__init__()
        self.counts["sequences"] += 1
        self.folder = Path(tempfile.mkdtemp(prefix="sequences"))
        self.files = 0
        self.twin: Any = None
        self.trainer: Any = None
        self.modules: dict[str, tuple[Any, tuple[str, ...]]] = {}  # Keras's module and the keys of its layers, by key
        self.layers: dict[str, Any] = {}
        self.of_heads: dict[str, str] = {}  # the key of a head's module
        self.optimizers: list[tuple[Any, Optimizer]] = []  # all of them, the latest at the end
        self.slots: dict[int, dict[Any, list[Any]]] = {}  # Keras's slots by the identity of the twin's optimizer
        self.of_model: dict[str, Any] | None = None  # the options of the optimizer of `from_model`
        self.saved_weights: Any = None
        self.setup = 0  # counts what makes weights that were saved before unfit
        self.synced: dict[Any, np.ndarray] = {}
        self.moment: str | None = None
        self.absent: set[str] = set()  # the heads without targets in the data of the `fit` that runs
        self.number = 0  # of layers and modules so far
        self.has_data = False
        self.rng = np.random.default_rng(0)
        self.dtype = "float32"

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        keras.mixed_precision.set_global_policy("float32")

    def path(self, suffix: str) -> str:
        self.files += 1
        return str(self.folder / f"{self.files}{suffix}")

    # ------------------------------------------------------------------------------------------- comparing

    def values(self) -> dict[Any, np.ndarray]:
        """The weights of all modules, and the slots of all optimizers, as the trainer has them."""
        found = {}
        for key, layer in self.layers.items():
            for part in PARTS:
                found[key, part] = np.array(tf.convert_to_tensor(tensor_variable(getattr(layer, part))))
        for optimizer, of_twin in self.optimizers:
            for variable, slots in self.slots_of(optimizer, of_twin).items():
                for place, slot in enumerate(slots):
                    found["slot", id(of_twin), variable, place] = np.array(tf.convert_to_tensor(tensor_variable(slot)))
        return found

    def slots_of(self, optimizer: Any, of_twin: Optimizer) -> dict[Any, list[Any]]:
        """The slots of an optimizer; which variable they belong to is noted when they are new, in the order of variables."""
        if of_twin.built_for is None:
            return {}
        if id(of_twin) not in self.slots:
            names = {"adamw": ["_momentums", "_velocities"], "sgd": ["momentums"]}[of_twin.kind][: of_twin.num_slots]
            lists = [list(getattr(optimizer, name, [])) for name in names]
            if not any(lists):  # before the first data
                return {}
            assert all(len(each) == len(of_twin.built_for) for each in lists), "the optimizer has other slots"
            self.slots[id(of_twin)] = {key: [each[i] for each in lists] for i, key in enumerate(of_twin.built_for)}
        return self.slots[id(of_twin)]

    def expected(self) -> dict[Any, np.ndarray]:
        """The same of the twin."""
        found = dict(self.twin.values)
        for _, of_twin in self.optimizers:
            for variable, slots in of_twin.slots.items() if id(of_twin) in self.slots else ():
                found |= {("slot", id(of_twin), variable, place): slot for place, slot in enumerate(slots)}
        return found

    def compare(self, when: str) -> None:
        """Compares trainer and twin; what the twin has not changed must have the same bits. The twin then takes over the rounding."""
        actual, expected = self.values(), self.expected()
        for key, value in expected.items():
            if key in self.synced and self.synced[key] is value:
                np.testing.assert_array_equal(actual[key], value, err_msg=f"{when}: {key} must be still")
            else:
                self.close(actual[key], value, f"{when}: {key}")
        for key, value in expected.items():
            if self.synced.get(key) is value:
                continue
            if key[0] == "slot":
                of_twin = next(each for _, each in self.optimizers if id(each) == key[1])
                of_twin.slots[key[2]][key[3]] = actual[key]
            else:
                self.twin.values[key] = actual[key]
        self.synced = self.expected()
        assert int(self.trainer.update_count) == self.twin.count, f"{when}: count"
        assert self.trainer.num_updates == self.twin.count
        for optimizer, of_twin in self.optimizers:
            assert int(tensor_variable(optimizer.iterations)) == of_twin.iterations, f"{when}: iterations of {of_twin.kind}"
        for name, head in self.twin.trained.items():
            if not isinstance(head.weight, str):
                assert float(self.trainer.heads[name].weight) == head.weight, f"{when}: weight of {name}"
        assert list(self.trainer.heads) == list(self.twin.heads)

    def close(self, actual: Any, expected: Any, message: str) -> None:
        actual, expected = np.asarray(actual, "float64"), np.asarray(expected, "float64")
        scale = np.nanmax(np.abs(expected)) if np.isfinite(expected).any() else 0.0
        tolerance = TOLERANCES[self.dtype]
        np.testing.assert_allclose(actual, expected, tolerance, tolerance * (scale + 1 / 64), err_msg=message)

    def twin_logs(self) -> dict[str, float]:
        shows = dict(self.twin.options.others)["telemetry"] is not None
        return self.twin.logs.training(list(self.twin.trained), shows)

    def compare_logs(self, logs: Any, expected: dict[str, float], when: str, whole: str | None = "") -> None:
        """Compares logs; `whole` is the prefix of those of which there must be no others."""
        for name, value in expected.items():
            assert name in logs, f"{when}: {name} is not in the logs {sorted(logs)}"
            shown = {key: float(logs[key]) for key in expected if key in logs}
            self.close(float(logs[name]), value, f"{when}: {name} of {shown}, not {expected},")
        if whole == "val_":
            others = [name for name in logs if name.startswith("val_") and name not in {*expected, "val_loss"}]
            assert not others, f"{when}: {others}"

    def restore(self, saved: Any) -> None:
        """The twin goes back to a state, whose arrays are those that the trainer had then, to the bit."""
        self.twin.restore(saved)
        self.synced = self.expected()

    # ------------------------------------------------------------------------------------------- modules

    def add_layer(self, units: int, inputs: int) -> str:
        self.number += 1
        key = f"l{self.number}"
        layer = keras.layers.Dense(units, name=key)
        layer(tf.zeros((1, inputs)))  # `build` alone does not tell Keras 2 the shape that it saves
        kernel, bias = self.rng.integers(-8, 9, (inputs, units)) / 8, self.rng.integers(-8, 9, units) / 8
        layer.set_weights([kernel, bias])
        self.layers[key] = layer
        self.twin.add_layer(key, kernel, bias)
        return key

    def add_module(self, kind: str) -> str:
        """A new module, of one layer, or of one that another such module may also have and one of its own."""
        if kind == "dense":
            keys = (self.add_layer(COLUMNS, UNITS),)
            module = self.layers[keys[0]]
        else:
            known = [keys[0] for _, keys in self.modules.values() if len(keys) == 2]
            bottom = known[0] if known else self.add_layer(UNITS, UNITS)
            keys = (bottom, self.add_layer(COLUMNS, UNITS))
            module = keras.Sequential([self.layers[key] for key in keys])
            module(tf.zeros((1, UNITS), self.dtype))  # to which Keras 2 casts inputs from then on
        self.number += 1
        key = f"m{self.number}"
        self.modules[key] = module, keys
        return key

    def free_names(self) -> list[str]:
        return [name for name in NAMES if name not in self.twin.heads]

    # ------------------------------------------------------------------------------------------- beginning

    @initialize(
        dtype=st.sampled_from(list(TOLERANCES)),
        eager=st.sampled_from([True, True, False]),
        two=st.booleans(),
        how=st.sampled_from(["new", "from_model"]),
        seed=st.integers(0, 99),
    )
    def begin(self, dtype: str, eager: bool, two: bool, how: str, seed: int) -> None:
        keras.mixed_precision.set_global_policy(dtype)
        self.dtype = dtype
        self.rng = np.random.default_rng(seed)
        self.eager = eager if self.eager is None else self.eager
        self.twin = Twin(())
        self.twin.encoder = (self.add_layer(UNITS, INPUTS),)
        encoder = self.layers[self.twin.encoder[0]]
        if how == "new":
            self.trainer = MultiHeadTrainer(encoder)
            for _ in range(1 + two):
                self._add(self.free_names()[0], "dense", {})
        else:
            inputs = keras.Input((INPUTS,))
            hidden, outputs, weights = encoder(inputs), {}, {"a": 0.5, "b": 2.0}
            for name in weights:
                self.of_heads[name] = self.add_module("dense")
                module, keys = self.modules[self.of_heads[name]]
                outputs[name] = module(hidden)
                self.twin.heads[name] = Head(keys, weights[name])
            model = keras.Model(inputs, outputs)
            self.of_model = {"kind": "sgd", "rate": 1 / 32, "momentum": 0.5}
            model.compile(optimizer_of(self.of_model), dict.fromkeys(weights, "mse"), loss_weights=weights)
            self.trainer = MultiHeadTrainer.from_model(model)
        self.compare("at the beginning")

    # ------------------------------------------------------------------------------------------- heads

    def _add(self, name: str, module: str, options: dict[str, Any]) -> None:
        key = module if module in self.modules else self.add_module(module)
        built, layers = self.modules[key]
        head = Head(layers, **options)
        self.trainer.add_head(
            name,
            built,
            "mse" if head.is_trained else None,
            **({"weight": WEIGHTS.get(head.weight, head.weight)} if head.is_trained else {}),
            trains_encoder=head.trains_encoder,
            **(
                {"learning_rate_multiplier": RATES[head.rate], "weight_decay_multiplier": head.decay}
                if head.is_trained
                else {}
            ),
        )
        self.twin.heads[name], self.of_heads[name] = head, key
        self.changed()

    def changed(self) -> None:
        """What heads that change, or another `compile`, do."""
        self.twin.forget()
        self.setup += 1

    def is_ready(self) -> bool:
        return self.twin is not None and self.twin.options is not None

    def has_heads(self) -> bool:
        return bool(self.twin.trained)

    @precondition(lambda self: len(self.twin.heads) < len(NAMES))
    @rule(data=st.data())
    def add_head(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self.free_names()), label="name")
        module = data.draw(st.sampled_from(["dense", "chain", *self.modules]), label="module")
        options = {
            "weight": data.draw(st.sampled_from([1.0, 1 / 3, 2.0, 0.0, *WEIGHTS]), label="weight"),
            "rate": data.draw(st.sampled_from(list(RATES)), label="rate"),
            "decay": data.draw(st.sampled_from([1.0, 0.0]), label="decay"),
            "trains_encoder": data.draw(st.sampled_from([True, True, False]), label="trains_encoder"),
        }
        if data.draw(st.integers(0, 7), label="measured if 7") == 7:
            options = {"is_trained": False}
        self._add(name, module, options)
        self.done("after add_head")
        self.compile_mostly(data)

    @precondition(lambda self: len(self.twin.heads) > 1)
    @rule(data=st.data())
    def remove_head(self, data: Any) -> None:
        name = data.draw(st.sampled_from(list(self.twin.heads)), label="name")
        self._remove(name)
        self.done("after remove_head")
        self.compile_mostly(data)

    def _remove(self, name: str) -> None:
        self.trainer.remove_head(name)
        del self.twin.heads[name], self.of_heads[name]
        self.changed()

    @precondition(lambda self: self.has_heads())
    @rule(data=st.data())
    def replace_head(self, data: Any) -> None:
        name = data.draw(st.sampled_from(list(self.twin.heads)), label="name")
        self._remove(name)
        module = data.draw(st.sampled_from(["dense", *self.modules]), label="module")
        self._add(name, module, {"weight": data.draw(st.sampled_from([1.0, 1 / 3]), label="weight")})
        self.done("after replacing a head")
        self.compile_mostly(data)

    @precondition(lambda self: self.has_heads())
    @rule(data=st.data())
    def freeze(self, data: Any) -> None:
        """Sets `trainable` of a layer; it counts from the next `compile` on."""
        key = data.draw(st.sampled_from(list(self.layers)), label="layer")
        is_trainable = key in self.twin.untrainable
        self.layers[key].trainable = is_trainable
        self.twin.untrainable ^= {key}
        self.done("after freezing")
        self.twin.forget()  # what was built before may be trained as it was
        if not self._compile(data):
            self.layers[key].trainable = not is_trainable
            self.twin.untrainable ^= {key}
        self.done("after compile")

    # ------------------------------------------------------------------------------------------- compile

    def compile_mostly(self, data: Any) -> None:
        if self.has_heads() and data.draw(st.sampled_from([True, True, True, False]), label="compile"):
            self._compile(data)
            self.done("after compile")

    @precondition(lambda self: self.has_heads())
    @rule(data=st.data())
    def compile(self, data: Any) -> None:
        self._compile(data)
        self.done("after compile")

    def _compile(self, data: Any) -> bool:
        """Compiles with options that are drawn, unless they would freeze everything, which is an error."""
        names = list(self.twin.trained)
        choose = lambda label, *values: data.draw(st.sampled_from(values), label=label)  # noqa: E731
        variables = set(self.twin.trainable())
        usable = [
            i for i, (_, each) in enumerate(self.optimizers) if each.built_for is None or variables <= set(each.built_for)
        ]
        kinds = ["sgd", "adamw"] + ["again"] * bool(usable)
        if self.of_model:
            kinds.append("of the model")
        kind = choose("optimizer", *kinds)
        if kind == "again":
            optimizer, of_twin = self.optimizers[choose("which", *usable)]
        elif kind == "of the model":
            optimizer, of_twin = None, Optimizer(**self.of_model)
        else:
            options = {"kind": kind, "rate": choose("learning rate", 1 / 32, 1 / 64, "pieces")}
            options |= {"momentum": choose("momentum", 0.5, 0.0)} if kind == "sgd" else {}
            options["decay"] = choose("weight decay", 0.25, 0.0) if kind == "sgd" else 0.25
            optimizer, of_twin = optimizer_of(options), Optimizer(**options)
        schedule = choose("schedule", None, None, "together", "alternate", "sample")
        clip = choose("clip", None, None, ("value", 0.1), ("norm", 0.3), ("global_norm", 0.3))
        balancer = choose("balancer", None, None, "sum", "sum_of_thirds", "equal")
        options = Options(
            encoder_rate=choose("encoder_rate", *RATES),
            encoder_decay=choose("encoder_decay", 1.0, 0.0),
            accumulates=choose("accumulation", 1, 1, 2),
            clip=clip,
            balancer=balancer,
            balance_at=choose("balance_at", "representation", "parameters") if balancer else "representation",
            others=(
                ("telemetry", choose("telemetry", "norms", None, "full")),
                ("micro_batches", choose("micro_batches", 1, 1, 2)),
            ),
        )
        parts_of_rates = [options.encoder_rate] * (not set(self.twin.encoder) & self.twin.untrainable)
        parts_of_rates += [h.rate for h in self.twin.trained.values() if set(h.layers) - self.twin.untrainable]
        if set(parts_of_rates) <= {"frozen", "staged"}:
            return False
        of_library = None
        if schedule is not None:
            of_library, options.schedule = schedule_of(schedule, names)
        preference = dict.fromkeys(names, twins.PREFERENCE.get(balancer, 1.0))
        method = {None: None, "equal": balancing.EqualNorms()}.get(balancer, balancing.Sum(preference))
        self.trainer.compile(
            optimizer,
            run_eagerly=self.eager,
            head_schedule=of_library,
            clip=None if clip is None else CLIPS[clip[0]](clip[1]),
            balancer=method,
            balance_at=options.balance_at,
            gradient_accumulation_steps=options.accumulates,
            encoder_learning_rate_multiplier=RATES[options.encoder_rate],
            encoder_weight_decay_multiplier=options.encoder_decay,
            max_skipped_updates=None,
            **dict(options.others),
        )
        self.changed()
        self.twin.options, self.twin.optimizer = options, of_twin
        self.optimizers = [each for each in self.optimizers if each[1] is not of_twin]
        self.optimizers.append((self.trainer.optimizer, of_twin))
        return True

    # ------------------------------------------------------------------------------------------- what callbacks may do, too

    def done(self, when: str) -> None:
        self.counts["rules"] += 1
        self.has_data |= self.twin.variables is not None
        self.compare(when)

    def with_weights(self) -> list[str]:
        return [name for name, head in self.twin.trained.items() if not isinstance(head.weight, str)]

    def needed(self) -> list[str]:
        """The heads that must have targets in training."""
        return [name for name, head in self.twin.trained.items() if head.weight != 0]

    def actions(self, data: Any, most: int, moments: tuple[str, ...]) -> list[Any]:
        """Some calls at some moments of a `fit`."""
        found = []
        for _ in range(data.draw(st.integers(0, most), label="calls in callbacks")):
            moment = data.draw(st.sampled_from(moments), label="at")
            number = data.draw(st.integers(0, 3), label="number")
            found.append((moment, number, self.action(data)))
        return found

    def action(self, data: Any) -> Any:
        """A call, drawn, as a function."""
        kinds = [
            "weight",
            "idle",
            "predict",
            "save",
            "save_weights",
            "load_weights",
            "head_gradients",
            "compute_gradients",
            "diagnose",
            "rate",
            "evaluate",
        ]
        kind = data.draw(st.sampled_from(kinds), label="call")
        trained = list(self.twin.trained)
        if kind == "weight" and self.with_weights():
            name = data.draw(st.sampled_from(self.with_weights()), label="name")
            value = data.draw(st.sampled_from([0.0, 1 / 3, 1.0, 2.0]), label="weight")
            return lambda: self.set_weight(name, value)
        if kind == "idle":
            names = data.draw(st.lists(st.sampled_from(trained), unique=True, max_size=len(trained)), label="idle")
            return lambda: self.set_idle(names)
        if kind == "rate":
            value = data.draw(st.sampled_from([1 / 32, 1 / 64]), label="learning rate")
            return lambda: self.set_learning_rate(value)
        if kind == "predict":
            x = batches_of(data.draw(st.integers(0, 9), label="seed"), [3], {}, [])[0][0]
            return lambda: self.check_predictions(x)
        if kind in ("save", "save_weights"):
            return lambda: self.write(kind)
        if kind == "load_weights":
            return lambda: self.load_saved_weights() if self.can_load_weights() else None
        form, (batches,) = drawn(data, trained)
        if kind == "evaluate":
            return lambda: self.check_evaluation(form, batches)
        at = data.draw(st.sampled_from(["representation", "parameters"]), label="level")
        return lambda: self.measure(kind, batches, at)

    def write(self, kind: str) -> None:
        if kind == "save_weights" and not self.trainer.built:
            return  # an error of Keras 3
        path = self.path(".keras" if kind == "save" else ".weights.h5")
        getattr(self.trainer, kind)(path)
        if self.has_data:
            self.twin.build()
        if kind == "save_weights" and self.twin.variables is not None:
            self.saved_weights = path, self.setup, self.twin.state()

    def set_weight(self, name: str, value: float) -> None:
        if value and name in self.absent:
            with pytest.raises(ValueError, match="without targets in the data of the running `fit`"):
                self.trainer.set_weight(name, value)
            return
        self.trainer.set_weight(name, value)
        self.twin.heads[name].weight = value

    def set_idle(self, names: list[str]) -> None:
        self.trainer.set_idle(names)
        self.twin.idle = set(names)

    def set_learning_rate(self, value: float) -> None:
        if self.twin.optimizer.rate != "pieces":
            self.trainer.optimizer.learning_rate = value
            self.twin.optimizer.rate = value

    def check_predictions(self, x: np.ndarray) -> None:
        found, expected = self.trainer.predict(x, verbose=0), self.twin.predict(x)
        assert list(found) == list(expected)
        for name, values in expected.items():
            self.close(found[name], values, f"predictions of {name}")

    def check_evaluation(self, form: str, batches: list[Any]) -> None:
        given = as_given(form, [batches])
        steps = given.pop("steps_per_epoch", None)
        logs = self.trainer.evaluate(**given, steps=steps, verbose=0, return_dict=True)
        weights = self.twin.weights_of_evaluation()
        expected = self.twin.evaluate(batches, weights)
        self.compare_logs(logs, expected, "evaluate")
        assert set(logs) == set(expected), f"evaluate: {sorted(logs)} in place of {sorted(expected)}"
        self.twin.build()

    def measure(self, kind: str, batches: list[Any], at: str) -> None:
        batch = parts(batches[0])
        if kind == "diagnose":
            self.trainer.diagnose([batch])
        elif kind == "compute_gradients":
            self.trainer.compute_gradients([batch] if self.twin.options.accumulates > 1 else batch)
        else:
            found = self.trainer.head_gradients(batch, at=at)
            twin, self_schedule = self.twin, self.twin.options.schedule
            self.twin.options.schedule = None
            twin.build()
            for name in twin.active([batches[0]]):
                if not twin.heads[name].trains_encoder:
                    continue
                _, _, _, leaves, of_encoder = twin.rows([batches[0]], name)
                encoder = {key: 0.0 if twin.is_frozen(twin.rates()[key][0]) else 1.0 for key in of_encoder}
                of_variables = [of_encoder[key] * encoder[key] for key in twin.variables if key in of_encoder]
                rows = leaves if at == "representation" else of_variables
                for one, other in zip(found[name], rows):
                    self.close(tf.zeros(other.shape) if one is None else one, other, f"head_gradients of {name}")
            self.twin.options.schedule = self_schedule
        self.twin.build()

    @precondition(lambda self: self.is_ready())
    @rule(data=st.data())
    def call(self, data: Any) -> None:
        """One of the calls that callbacks may make, between calls of `fit`."""
        self.action(data)()
        self.done("after a call")

    # ------------------------------------------------------------------------------------------- training

    def windows(self, epochs: list[Any]) -> list[list[Any]]:
        size = self.twin.options.accumulates
        return [[batches[at : at + size] for at in range(0, len(batches), size)] for batches in epochs]

    @precondition(lambda self: self.is_ready())
    @rule(data=st.data(), epochs=st.integers(1, 2))
    def fit(self, data: Any, epochs: int) -> None:
        size = self.twin.options.accumulates
        form, batches = drawn(data, list(self.twin.trained), self.needed(), epochs, size)
        actions = self.actions(data, 2, MOMENTS)
        if data.draw(st.integers(0, 5), label="stops if 5") == 5:
            moment, number = data.draw(st.sampled_from(MOMENTS), label="at"), data.draw(st.integers(0, 3), label="number")
            actions.append((moment, number, stop))
        validation = None
        options: dict[str, Any] = {}
        if data.draw(st.integers(0, 3), label="validation if 3") == 3:
            _, (validation,) = drawn(data, list(self.twin.trained))
            options = {"validation_data": Batches([parts(batch) for batch in validation])}
        follower = Follower(self, self.windows(batches), actions, validation)
        try:
            self.trainer.fit(
                **as_given(form, batches, size), **options, epochs=epochs, shuffle=False, verbose=0, callbacks=[follower]
            )
        except Stop:
            pass
        else:
            assert follower.updates == sum(map(len, follower.epochs)), "fit has made another number of updates"
        self.done("after fit")

    @precondition(lambda self: self.is_ready())
    @rule(data=st.data(), by_hand=st.booleans())
    def train_one_batch(self, data: Any, by_hand: bool) -> None:
        """An update outside of `fit`."""
        size = self.twin.options.accumulates
        _, (batches,) = drawn(data, list(self.twin.trained))
        if by_hand or size > 1:
            given = [parts(batch) for batch in batches[:size]]
            pairs = self.trainer.compute_gradients(given if size > 1 else given[0])
            self.trainer.apply_gradients(pairs)
        else:
            x, y, weights = batches[0]
            self.trainer.train_on_batch(x, y, sample_weight=weights or None)
        self.twin.update(batches[:size])
        self.counts["updates"] += 1
        self.done("after an update of one batch")

    # ------------------------------------------------------------------------------------------- saving

    def reload(self, path: str) -> None:
        """Goes on with a trainer that is loaded from a file."""
        self.trainer = keras.models.load_model(path)
        twin = self.twin
        pairs = list(zip(twin.encoder, dense_layers(self.trainer.encoder), strict=True))
        for name, head in twin.heads.items():
            pairs += zip(head.layers, dense_layers(self.trainer.heads[name].module), strict=True)
        self.layers = dict(pairs)
        for key, layer in pairs:
            assert self.layers[key] is layer, f"{key} is no longer shared"
        known = {self.of_heads[name]: (self.trainer.heads[name].module, head.layers) for name, head in twin.heads.items()}
        self.modules = known
        twin.values = {key: value for key, value in twin.values.items() if key[0] in self.layers}
        twin.untrainable &= set(self.layers)
        twin.idle = set()
        self.of_model, self.slots = None, {}
        if twin.variables is not None:  # the optimizer that is loaded knows no others
            twin.optimizer.built_for = list(twin.variables)
            twin.optimizer.slots = {key: twin.optimizer.slots[key] for key in twin.variables}
        self.optimizers = [(self.trainer.optimizer, twin.optimizer)] if twin.options is not None else []

    @rule()
    def save_and_load(self) -> None:
        path = self.path(".keras")
        self.trainer.save(path)
        if self.is_ready() and self.has_data:
            self.twin.build()
        self.reload(path)
        self.done("after loading")

    @precondition(lambda self: self.is_ready() and self.twin.variables is not None)
    @rule()
    def save_weights(self) -> None:
        self.write("save_weights")
        self.done("after save_weights")

    def can_load_weights(self) -> bool:
        return self.saved_weights is not None and self.saved_weights[1] == self.setup and bool(self.twin.variables)

    def load_saved_weights(self) -> None:
        path, _, state = self.saved_weights
        self.trainer.load_weights(path)
        idle, logs = self.twin.idle, self.twin.logs
        self.restore(state)
        self.twin.idle, self.twin.logs = idle, logs

    @precondition(lambda self: self.can_load_weights())
    @rule()
    def load_weights(self) -> None:
        self.load_saved_weights()
        self.done("after load_weights")

    @precondition(lambda self: self.is_ready())
    @rule(data=st.data(), every=st.sampled_from([1, 2, "epoch"]))
    def killed_fit(self, data: Any, every: Any) -> None:
        """A `fit` with a checkpoint ends with an exception, and a trainer that is loaded as it was before continues it."""
        size, epochs = self.twin.options.accumulates, 2
        form, batches = drawn(data, list(self.twin.trained), self.needed(), epochs, size)
        actions, windows = self.actions(data, 2, MOMENTS[1:]), self.windows(batches)
        place = data.draw(st.integers(0, sum(map(len, windows)) - 1), label="killed at")
        start, folder = self.path(".keras"), self.path("")
        self.trainer.save(start)
        if self.has_data:
            self.twin.build()
        self.reload(start)  # as the program that is started again does
        before = self.twin.state()
        follower = Follower(self, windows, [*actions, ("batch end", place, stop)])
        options = {"epochs": epochs, "shuffle": False, "verbose": 0}

        def fit(follower: Follower) -> None:
            checkpoint = callbacks.Checkpoint(folder, every=every)
            self.trainer.fit(**as_given(form, batches, size), **options, callbacks=[follower, checkpoint])

        try:
            fit(follower)
        except Stop:
            epoch = next(i for i in range(epochs) if place < follower.number_of(i + 1))
            done = place - follower.number_of(epoch)
            at = (epoch, 0 if every == "epoch" else done // every * every)
            self.reload(start)
            self.restore(before)
            self.compare("as it was before the run")
            after = None if at == (0, 0) else (at, follower.states)
            again = Follower(self, windows, actions, after=after)
            fit(again)
            assert again.updates == again.number_of(epochs) - again.number_of(*at), "the run made another number of updates"
        self.done("after a run that was killed")


def stop() -> None:
    raise Stop


warnings.filterwarnings("ignore", module="hypothesis")
