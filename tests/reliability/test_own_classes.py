"""Classes that users write, and what they first pass to `compile`: a mistake is said in a sentence that says what to do."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, balancing, clipping, schedules, weighting

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


def a_trainer(**options):
    heads = {name: Head(keras.layers.Dense(1), "mse") for name in "ab"}
    trainer = MultiHeadTrainer(keras.layers.Dense(4), heads)
    trainer.compile("sgd", **{"run_eagerly": True, **options})
    return trainer


class Coefficients(balancing.Balancer):
    def __init__(self, result):
        super().__init__()
        self._result = lambda: result

    def coefficients(self, gramian):
        return self._result()


class Combine(balancing.Balancer):
    uses = ("gradients",)

    def __init__(self, change):
        super().__init__()
        self._change = change

    def combine(self, gradients):
        return self._change([tf.reduce_sum(each, axis=0) for each in gradients])


class Total(weighting.Weighting):
    def __init__(self, change):
        super().__init__()
        self._change = change

    def total(self, losses, active):
        return self._change(losses)


class Regularizer(Total):
    def total(self, losses, active):
        return tf.reduce_sum(losses)

    def regularizer(self, active):
        return self._change(tf.cast(active, tf.float32))


class Active(schedules.Schedule):
    def __init__(self, result):
        super().__init__()
        self._result = result

    def active(self, step):
        return self._result


WRONG = {
    "three coefficients": lambda: {"balancer": Coefficients(np.ones(3, "float32"))},
    "one coefficient": lambda: {"balancer": Coefficients(np.ones(1, "float32"))},
    "a column of coefficients": lambda: {"balancer": Coefficients(np.ones((2, 1), "float32"))},
    "a number as coefficients": lambda: {"balancer": Coefficients(1.0)},
    "booleans as coefficients": lambda: {"balancer": Coefficients([True, False])},
    "complex coefficients": lambda: {"balancer": Coefficients(np.ones(2, "complex64"))},
    "texts as coefficients": lambda: {"balancer": Coefficients(["a", "b"])},
    "no coefficients": lambda: {"balancer": Coefficients(None)},
    "no list": lambda: {"balancer": Combine(lambda rows: rows[0]), "balance_at": "parameters"},
    "a tensor too few": lambda: {"balancer": Combine(lambda rows: rows[1:]), "balance_at": "parameters"},
    "another length": lambda: {"balancer": Combine(lambda rows: [each[1:] for each in rows]), "balance_at": "parameters"},
    "an axis": lambda: {"balancer": Combine(lambda rows: [each[None] for each in rows]), "balance_at": "parameters"},
    "nothing combined": lambda: {"balancer": Combine(lambda rows: None), "balance_at": "parameters"},
    "a total for each head": lambda: {"weighting": Total(lambda losses: losses)},
    "no total": lambda: {"weighting": Total(lambda losses: None)},
    "an integer total": lambda: {"weighting": Total(lambda losses: 1)},
    "a regularizer for each head": lambda: {"weighting": Regularizer(lambda active: active)},
    "three active": lambda: {"head_schedule": Active([True, True, False])},
    "one active": lambda: {"head_schedule": Active(True)},
    "numbers as active": lambda: {"head_schedule": Active([1.0, 0.0])},
    "none active": lambda: {"head_schedule": Active(None)},
}


def called(method):
    """What a method returns outside of a trainer."""
    method.bind(["a", "b"])
    if isinstance(method, schedules.Schedule):
        return method.active(tf.constant(0, tf.int64))
    return method(tf.eye(2)) if isinstance(method, balancing.Balancer) else method([1.0, 2.0])


@pytest.mark.parametrize("case", WRONG)
def test_what_a_method_of_ones_own_returns(case):
    options = WRONG[case]()
    method, name = options[next(iter(options))], {"weighting": "", "head_schedule": "active"}.get(next(iter(options)), "co")
    message = rf"^`{name}\w*` of \w+ must return .*\. Received: .*\. Correct its result"
    if case != "a regularizer for each head":  # which a call without a trainer does not need
        with pytest.raises(ValueError, match=message):
            called(method)
    if case in ("three coefficients", "a tensor too few", "no total", "a regularizer for each head", "one active"):
        with pytest.raises(ValueError, match=message):
            a_trainer(run_eagerly=False, **WRONG[case]()).fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    "options",
    [
        {"balancer": Coefficients([1, 2])},
        {"balancer": Coefficients(np.ones(2))},
        {"weighting": Total(tf.reduce_sum)},
        {"weighting": Regularizer(lambda active: None)},
        {"head_schedule": Active([True, False])},
    ],
)
def test_what_it_may_return(options):
    a_trainer(**options).fit(X, Y, verbose=0)


def test_a_method_that_is_a_tf_function():
    class Mine(balancing.Balancer):
        @tf.function
        def coefficients(self, gramian):
            return tf.linalg.diag_part(gramian)

    class Wrong(weighting.Weighting):
        @tf.function
        def total(self, losses, active):
            return losses

    np.testing.assert_allclose(Mine()(tf.constant([[1.0, 0.0], [0.0, 2.0]])), [1.0, 8.0])
    with pytest.raises(ValueError, match="`total` of Wrong must return the total loss, a floating-point scalar"):
        Wrong()([1.0, 2.0])


def forgetful(base):
    """A class whose `__init__` does not call that of its base class."""
    return type(f"Forgetful{base.__name__}", (base,), {"__init__": lambda self, *args: None, "call": lambda self, x: x})


@pytest.mark.parametrize(
    ("argument", "use"),
    {
        "encoder": lambda: MultiHeadTrainer(forgetful(keras.layers.Layer)()),
        "encoder, a model": lambda: MultiHeadTrainer(forgetful(keras.Model)()),
        "module": lambda: Head(forgetful(keras.layers.Layer)(), "mse"),
        "loss": lambda: Head(keras.layers.Dense(1), forgetful(keras.losses.Loss)()),
        "metrics": lambda: Head(keras.layers.Dense(1), "mse", metrics=[forgetful(keras.metrics.MeanSquaredError)()]),
        "balancer": lambda: a_trainer(balancer=forgetful(balancing.Balancer)()),
        "weighting": lambda: a_trainer(weighting=forgetful(weighting.Weighting)()),
        "head_schedule": lambda: a_trainer(head_schedule=forgetful(schedules.Schedule)()),
    }.items(),
)
def test_a_forgotten_super_init(argument, use):
    name = argument.partition(",")[0]
    with pytest.raises(
        ValueError, match=rf"^`{name}` must be initialized .*Received: a Forgetful.*`super\(\).__init__\(\)`"
    ):
        use()


def test_a_trainer_that_forgets_it():
    with pytest.raises(TypeError, match=r"^`ForgetfulMultiHeadTrainer` must be .*`super\(\).__init__\(encoder, heads\)`"):
        forgetful(MultiHeadTrainer)(keras.layers.Dense(2))

    class Mine(MultiHeadTrainer):
        def __init__(self, units):
            super().__init__(keras.layers.Dense(units))

    class Others(MultiHeadTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    class Last(Others):
        def __init__(self, units, /, *, name="last"):
            super().__init__(keras.layers.Dense(units), name=name)

    for trainer in (Mine(2), Others(keras.layers.Dense(2)), Others(encoder=keras.layers.Dense(2)), Last(2)):
        trainer.add_head("a", keras.layers.Dense(1), "mse")
    assert list(inspect.signature(Mine.__init__).parameters) == ["self", "units"]
    assert inspect.getfullargspec(Last.__init__).kwonlyargs == ["name"]


OF_KERAS = [
    name for name in inspect.signature(keras.Model.compile).parameters if name not in ("self", "kwargs", "optimizer")
]


@pytest.mark.parametrize("name", OF_KERAS)
def test_every_argument_of_keras_is_an_option_or_refused_in_words(name):
    trainer = MultiHeadTrainer(keras.layers.Dense(4), {"a": Head(keras.layers.Dense(1), "mse")})
    if name in inspect.signature(MultiHeadTrainer.compile).parameters:
        trainer.compile("sgd", **{name: None})
        return
    with pytest.raises(TypeError, match=rf"^`{name}` must not be passed to `compile`.*Received: {name}='mse'\. \w+"):
        trainer.compile("sgd", **{name: "mse"})


@pytest.mark.parametrize("name", ["ignore_label", "couples_rows", "learning_rate_multiplier"])
def test_an_argument_of_heads_is_refused_with_where_it_belongs(name):
    trainer = MultiHeadTrainer(keras.layers.Identity())
    with pytest.raises(
        TypeError, match=f"`{name}` must not be passed to `compile`.*Pass `{name}` to `add_head` or `Head`."
    ) as caught:
        trainer.compile("sgd", **{name: 1})
    assert ("write NaN in place of the labels" in str(caught.value)) == (name == "ignore_label")


@pytest.mark.parametrize("name", ["loss", "loss_weights", "metrics", "weighted_metrics"])
def test_losses_and_metrics_passed_to_compile_show_the_way(name):
    trainer = MultiHeadTrainer(keras.layers.Dense(4), {"a": Head(keras.layers.Dense(1), "mse")})
    way = r"MultiHeadTrainer\.from_model\(model\)` and then `trainer\.compile\(balancer=\"NormFloor\"\)`"
    with pytest.raises(TypeError, match=way):
        trainer.compile("sgd", **{name: "mse"})
    with pytest.raises(TypeError, match=way):
        trainer.compile("sgd", *([None] * OF_KERAS.index(name)), "mse")
    with pytest.raises(TypeError, match=r"`balancr` must not be passed .*Did you mean 'balancer'\?"):
        trainer.compile("sgd", balancr="UPGrad")


@pytest.mark.parametrize(
    ("argument", "module"),
    [("head_schedule", schedules), ("clip", clipping), ("balancer", balancing), ("weighting", weighting)],
)
def test_a_name_or_a_class_in_place_of_an_instance(argument, module):
    for name in module.__all__:
        kind = getattr(module, name)
        if not isinstance(kind, type) or argument in ("balancer", "weighting"):
            continue
        with pytest.raises(TypeError, match=rf"`{argument}` must be an instance .*Pass an instance of \w+\.{name}\.$"):
            a_trainer(**{argument: name})
        with pytest.raises(TypeError, match=rf"`{argument}` must be an instance .*Pass an instance, for example"):
            a_trainer(**{argument: kind})


@pytest.mark.parametrize(
    ("argument", "method"),
    [
        ("balancer", balancing.UPGrad({"a": 0.5})),
        ("balancer", balancing.NormBudget({"b": 0.25})),
        ("weighting", weighting.Uncertainty()),
    ],
)
def test_a_method_as_a_serialized_dict(argument, method):
    config = keras.saving.serialize_keras_object(method)
    made = getattr(a_trainer(**{argument: config}), argument)
    assert type(made) is type(method) and made.get_config() == method.get_config()
    with pytest.raises(ValueError, match=rf"`{argument}` must be from `keras\.saving\.serialize_keras_object`"):
        a_trainer(**{argument: {"class_name": "Nothing", "config": {}}})
    with pytest.raises(TypeError, match=rf"`{argument}` must be a {argument}, its name"):
        a_trainer(**{argument: keras.saving.serialize_keras_object(keras.layers.Dense(2))})


def test_target_scaling_without_heads():
    with pytest.raises(ValueError, match=r"`target_scaling` of `compile` must be a dict .*\{'price': 'standardize'\}"):
        MultiHeadTrainer(keras.layers.Dense(2)).compile("sgd", target_scaling="standardize")


@pytest.mark.parametrize("given", [{"positions": np.array([0.4, 0.8, 1.0])}, {"line_length": np.int64(80)}])
def test_numpy_values_in_summary(given):
    trainer, lines = a_trainer(), []
    trainer.predict(X, verbose=0)
    trainer.summary(print_fn=lambda *args, **kwargs: lines.append(str(args[0])), **given)
    assert any("Layer (type)" in line for line in lines)  # Keras's own


@pytest.mark.skipif(keras.__version__ >= "3", reason="Keras 3 has these losses")
@pytest.mark.parametrize("name", ["ctc", "CTC", "dice"])
def test_losses_of_keras_3_on_keras_2(name):
    with pytest.raises(ValueError, match="Keras 3 has it; with Keras 2, pass a function of"):
        Head(keras.layers.Dense(5), name)
