"""Calls that follow one another, or happen inside of `fit`: evaluations in callbacks, shared lists of callbacks, `compile`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, balancing, schedules, weighting
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}
MISSING = {**Y, "b": np.concatenate([Y["b"][:8], np.full([8, 1], np.nan, "float32")])}


def made(**options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(3))
    trainer.add_head("a", keras.layers.Dense(1), "mse", metrics=["mae"])
    trainer.add_head("b", keras.layers.Dense(1), "mse", weight=2.0)
    trainer.compile(keras.optimizers.Adam(0.05), **options)
    return trainer


def fit(trainer, y=Y, **options):
    return trainer.fit(X, y, batch_size=4, shuffle=False, verbose=0, **options).history


class At(keras.callbacks.Callback):
    """Calls something of the trainer after some batches."""

    def __init__(self, action, batches):
        super().__init__()
        self.action, self.batches = action, batches

    def on_train_batch_end(self, batch, logs=None):
        if batch in self.batches:
            self.action(self.model)


INSIDE = {
    "evaluate": lambda t: t.evaluate(X, Y, verbose=0),
    "evaluate a head": lambda t: t.evaluate(X, {"a": Y["a"]}, batch_size=8, verbose=0),
    "test_on_batch": lambda t: t.test_on_batch(X, Y),
    "predict": lambda t: t.predict(X, verbose=0),
    "diagnose": lambda t: t.diagnose(X, Y),
    "head_gradients": lambda t: t.head_gradients((X, Y)),
}


def test_an_evaluation_in_a_callback_has_the_current_weights_and_val_loss_those_of_the_beginning():
    logged = []

    def change_and_evaluate(trainer):
        trainer.set_weight("b", 0.5)
        logged.append(trainer.evaluate(X, Y, verbose=0, return_dict=True))
        logged.append(trainer.test_on_batch(X, Y, return_dict=True))

    trainer = made()
    history = fit(trainer, epochs=1, validation_data=(X, Y), callbacks=[At(change_and_evaluate, [3])])
    for logs in logged:
        np.testing.assert_allclose(logs["loss"], logs["a_loss"] + 0.5 * logs["b_loss"], rtol=1e-6)
    total = history["val_a_loss"][0] + 2.0 * history["val_b_loss"][0]
    np.testing.assert_allclose(history["val_loss"][0], total, rtol=1e-6)


@pytest.fixture(scope="module")
def alone():
    """What `fit` logs where no callback calls anything."""
    return fit(made(), MISSING, epochs=2, validation_data=(X, Y))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("call", INSIDE)
def test_what_a_callback_measures_changes_nothing(call, alone):
    found = fit(made(), MISSING, epochs=2, validation_data=(X, Y), callbacks=[At(INSIDE[call], (0, 3))])
    assert found.keys() == alone.keys()
    for name, values in alone.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


def test_an_evaluation_inside_of_fit_gives_what_it_gives_outside():
    results = []
    trainer = made()
    at = At(lambda t: results.append([t.evaluate(X, Y, verbose=0), t.test_on_batch(X, Y)]), (3,))
    fit(trainer, callbacks=[at])
    expected = trainer.evaluate(X, Y, verbose=0)
    for result in results[0]:
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_weights_that_a_callback_loads_leave_the_metrics_of_the_epoch(tmp_path):
    path = tmp_path / "saved.weights.h5"

    def train(callbacks):
        trainer = made()
        trainer.compile(keras.optimizers.SGD(0.0))  # with which weights of before are those of now
        return fit(trainer, MISSING, epochs=2, callbacks=callbacks)

    found = train([At(lambda t: t.load_weights(path) if path.exists() else t.save_weights(path), (1, 3))])
    for name, values in train([]).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


def test_metrics_that_a_callback_resets_do_not_end_fit():
    assert np.isfinite(fit(made(), callbacks=[At(lambda t: t.reset_metrics(), (1,))])["loss"][0])
    fit(made(), callbacks=[At(lambda t: t.reset_metrics(), (3,))])


def test_a_list_of_callbacks_that_fits_share_stays_what_it_is():
    class Counted(weighting.DWA):
        ends = 0

        def end_epoch(self):
            type(self).ends += 1
            super().end_epoch()

    trainer = made(weighting=Counted())
    shared = keras.callbacks.CallbackList([keras.callbacks.Callback()], add_history=True, model=trainer)
    before = list(shared.callbacks)
    for _ in range(3):
        trainer.fit(X, Y, verbose=0, callbacks=shared)
    assert shared.callbacks == before and Counted.ends == 3


CHANGES = {
    "the same heads": lambda t: None,
    "without the first head": lambda t: t.remove_head("a"),
    "with a frozen encoder": lambda t: setattr(t.encoder, "trainable", False),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("change", CHANGES)
def test_with_the_same_optimizer_each_variable_keeps_its_slots_and_idle_heads_theirs(change):
    trainer = made()
    fit(trainer)
    before = {id(each): [each.numpy(), *tiny.values(slots)] for each, slots in slots_of(trainer)}
    CHANGES[change](trainer)
    trainer.compile(trainer.optimizer)
    names = list(trainer.heads)
    trainer.compute_gradients((X, {name: Y[name] for name in names}))
    after = {id(each): [each.numpy(), *tiny.values(slots)] for each, slots in slots_of(trainer)}
    assert after and after.keys() <= before.keys()
    for key, values in after.items():
        assert len(values) == 3  # with the two moments of Adam
        for one, other in zip(values, before[key], strict=True):
            np.testing.assert_array_equal(one, other)
    # An idle head stays; the first moment of the others is that of Adam, from their own slots.
    idle = {name: Y[name] if name == "a" else np.full_like(Y[name], np.nan) for name in names}
    if "a" in names:
        fit(trainer, idle)
        b = {id(tiny_tensor(each)) for each in trainer.heads["b"].module.trainable_variables}
        frozen = (
            {id(tiny_tensor(each)) for each in trainer.encoder.variables} if change == "with a frozen encoder" else set()
        )
        for each, slots in slots_of(trainer):
            is_same = all(np.array_equal(x, y) for x, y in zip([each.numpy(), *tiny.values(slots)], before[id(each)]))
            assert is_same == (id(each) in b | frozen)
    else:
        ((gradient, variable), *_) = [
            (g, v) for g, v in trainer.compute_gradients((X, {"b": Y["b"]})) if v is trainer.heads["b"].module.kernel
        ]
        trainer.apply_gradients(trainer.compute_gradients((X, {"b": Y["b"]})))
        moments = [
            slots[0] for each, slots in slots_of(trainer) if each is variable or each is getattr(variable, "value", 0)
        ]
        of_b = [values for key, values in before.items() if key == id(tiny_tensor(variable))]
        np.testing.assert_allclose(tiny.values(moments)[0], 0.9 * of_b[0][1] + 0.1 * np.array(gradient), rtol=1e-5)


def tiny_tensor(variable):
    return variable.value if not callable(getattr(variable, "value", None)) else variable


def slots_of(trainer):
    """Pairs of the TensorFlow variable and its slots."""
    spec = trainer.update_spec
    return [(tiny_tensor(each), slots) for each, slots in zip(spec.network.variables.all, spec.running.slots)]


def test_each_compile_of_a_model_made_a_trainer_has_an_optimizer_of_its_own():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5)(inputs)
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(hidden) for name in Y})
    model.compile(keras.optimizers.AdamW(0.07, weight_decay=0.2), dict.fromkeys(Y, "mse"))
    trainer = MultiHeadTrainer.from_model(model)
    optimizers = []
    for _ in range(2):
        trainer.compile()
        assert int(trainer.optimizer.iterations) == 0
        trainer.fit(X, Y, verbose=0)
        optimizers.append(trainer.optimizer)
    assert optimizers[0] is not optimizers[1] and int(trainer.update_count) == 2
    for each in optimizers:
        np.testing.assert_allclose([float(each.learning_rate), each.weight_decay], [0.07, 0.2], rtol=1e-6)


def test_a_second_compile_begins_from_its_own_arguments():
    trainer = made(
        balancer="UPGrad", head_schedule=schedules.Alternate({"a": 1, "b": 1}), target_scaling={"a": "standardize"}
    )
    fit(trainer)
    trainer.set_weight("b", 3.0)
    trainer.compile("sgd")
    assert trainer.balancer is None and type(trainer.head_schedule) is schedules.Together
    assert trainer.heads["a"].target_scaling is not None and trainer.heads["b"].weight == 3.0 and trainer.num_updates == 4


WITH_STATE = {
    **{name: ("balancer", lambda name=name: getattr(balancing, name)()) for name in ("MetaBalance", "NormFloor", "GradVac")},
    "Chain": ("balancer", lambda: balancing.Chain(balancing.NormFloor(), balancing.UPGrad())),
    "Uncertainty": ("weighting", weighting.Uncertainty),
    "WhileConflicting": ("head_schedule", schedules.WhileConflicting),
}


def removed_and_added(trainer):
    trainer.remove_head("b")
    trainer.add_head("c", keras.layers.Dense(1), "mse")


HEADS = {"more": lambda t: t.add_head("c", keras.layers.Dense(1), "mse"), "others": removed_and_added}


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", WITH_STATE)
def test_the_state_of_a_method_is_of_its_heads(name, heads):
    argument, make = WITH_STATE[name]
    method = make()
    trainer = made(**{argument: method})
    trainer.compute_gradients((X, Y))
    HEADS[heads](trainer)
    with pytest.raises(
        ValueError, match=f"`{argument}` has state for the heads 'a', 'b'. Received: the heads 'a', '?.*Create"
    ):
        trainer.compile("sgd", **{argument: method})
    trainer.compile("sgd", **{argument: make()})


def test_the_loss_of_an_evaluation_can_be_compared_between_epochs():
    class Weigh(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weight("b", 5.0 * (epoch + 2))

    for options, callback in (({"weighting": "Uncertainty"}, []), ({"run_eagerly": False}, [Weigh()])):
        trainer = made(**options)
        logs = fit(trainer, epochs=3, validation_data=(X, Y), callbacks=callback)
        expected = np.array(logs["val_a_loss"]) + 2.0 * np.array(logs["val_b_loss"])
        np.testing.assert_allclose(logs["val_loss"], expected, rtol=1e-6)
    loss, a, b, _ = trainer.evaluate(X, Y, verbose=0)
    np.testing.assert_allclose(loss, a + 20.0 * b, rtol=1e-6)


@pytest.mark.parametrize("first", [np.nan, np.inf])
def test_terminate_on_nan_stops_at_what_is_not_finite_and_not_at_batches_without_labels(first):
    x, y = X.copy(), {name: labels.copy() for name, labels in Y.items()}
    if np.isnan(first):
        for labels in y.values():
            labels[:4] = np.nan
    else:
        x[:4] = np.inf
    trainer = made()
    with pytest.warns(RuntimeWarning, match="was skipped"):
        logs = trainer.fit(
            x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()]
        ).history
    assert len(logs["loss"]) == (2 if np.isnan(first) else 1)
    assert trainer.num_updates == (6 if np.isnan(first) else 0)
    assert np.isfinite(logs["loss"]).all() == np.isnan(first)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("event", "number"),
    [("on_epoch_end", 2), ("on_train_batch_begin", 6), ("on_test_batch_end", 3), ("on_test_begin", 2)],
)
def test_a_fit_after_one_that_ended_with_an_exception_validates_its_own_data(event, number):
    class Stop(Exception):  # noqa: N818 - no error of anything
        pass

    calls = []

    def stop(*_, **__):
        calls.append(event)
        if len(calls) == number:
            raise Stop

    trainer, callback = made(), keras.callbacks.Callback()
    setattr(callback, event, stop)
    with pytest.raises(Stop):
        fit(trainer, epochs=3, validation_data=(X[:8], {name: y[:8] for name, y in Y.items()}), callbacks=[callback])
    trainer.remove_head("a")
    trainer.compile(keras.optimizers.Adam(0.05))
    found = fit(trainer, {"b": Y["b"]}, validation_data=(X[8:], {"b": Y["b"][8:]}))
    expected = trainer.evaluate(X[8:], Y["b"][8:], verbose=0, return_dict=True)
    for name, value in expected.items():
        np.testing.assert_allclose(found[f"val_{name}"][-1], value, rtol=1e-5, err_msg=name)
