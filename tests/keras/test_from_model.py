"""`from_model`: a Keras model with several outputs as a trainer that predicts, evaluates and trains as the model does."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

pytestmark = pytest.mark.first_cases(2)  # the others are thorough

layers = keras.layers
NUM_EXAMPLES = 16
# Keras 3 compiles predictions by XLA, which rounds one graph in another way than two halves of it.
PLAIN = {"jit_compile": False, "run_eagerly": True}


def by_name(trainer, outputs):
    """Labels, or predictions, by head name."""
    if isinstance(outputs, dict) and set(outputs) == set(trainer.heads):
        return outputs
    return dict(zip(trainer.heads, tf.nest.flatten(outputs)))


def targets_like(model, inputs, seed=1):
    """Random targets of the shapes of a model's outputs."""
    rng = np.random.default_rng(seed)
    outputs = model.predict(inputs, verbose=0)
    return tf.nest.map_structure(lambda each: rng.normal(size=each.shape).astype("float32"), outputs)


def assert_same(model, inputs, targets=None, *, representation=None, tolerance=1e-6, **compiled):
    """Compares predictions bit for bit, evaluations, and the weights after one update."""
    compiled = {"optimizer": keras.optimizers.SGD(0.05), "loss": "mse", **compiled, **PLAIN}
    model.compile(**compiled)
    targets = targets_like(model, inputs) if targets is None else targets
    predicted = model.predict(inputs, verbose=0)
    evaluated = model.evaluate(inputs, targets, verbose=0, return_dict=True)
    variables = [*model.trainable_variables, *model.non_trainable_variables]  # in Keras 3 also the states of random layers
    before = [np.array(variable) for variable in variables]
    trainer = MultiHeadTrainer.from_model(model, representation=representation)
    found = trainer.predict(inputs, verbose=0)
    expected = by_name(trainer, predicted)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    trainer.compile(**PLAIN)
    assert type(trainer.optimizer) is type(model.optimizer) and trainer.optimizer is not model.optimizer
    found = trainer.evaluate(inputs, by_name(trainer, targets), verbose=0, return_dict=True)
    unique = len(set(model.output_names)) == len(model.output_names)  # Keras 3 logs a layer that is called twice once
    for name, value in evaluated.items() if unique else [("loss", evaluated["loss"])]:
        np.testing.assert_allclose(found[logged(name, model, trainer)], value, rtol=1e-5, atol=1e-6, err_msg=name)
    keras.utils.set_random_seed(5)
    model.fit(inputs, targets, batch_size=NUM_EXAMPLES, shuffle=False, verbose=0)
    after = [np.array(variable) for variable in variables]
    for variable, value in zip(variables, before):
        variable.assign(value)
    keras.utils.set_random_seed(5)
    trainer.fit(inputs, by_name(trainer, targets), batch_size=NUM_EXAMPLES, shuffle=False, verbose=0)
    assert any(np.any(np.array(a) != b) for a, b in zip(variables, before))  # the model sees the training
    for a, b in zip(variables, after):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return trainer


def logged(name, model, trainer):
    """The name in the trainer's logs of what a model logs.

    Keras puts the key of an output in front, or the name of its layer, or both of several keys.
    """
    name = name.rpartition("/")[2]
    by_layer = dict(zip(model.output_names, trainer.heads))
    by_key = {path[-1]: head for path, head in zip(paths(model.output), trainer.heads) if path}
    for names in (dict.fromkeys(trainer.heads), by_layer, by_key):
        for key in names:
            if name.startswith(f"{key}_"):
                return (names[key] or key) + name[len(key) :]
    return name


def paths(structure):
    """The keys that lead to each leaf of a structure of dicts, in the order of `tf.nest.flatten`."""
    if not isinstance(structure, dict):
        return [()] * len(tf.nest.flatten(structure))
    return [(key, *path) for key in sorted(structure) for path in paths(structure[key])]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(NUM_EXAMPLES, *shape)).astype("float32")


def trunk(units=8):
    inputs = keras.Input((6,))
    return inputs, layers.Dense(units, activation="tanh", name="trunk")(inputs)


# ------------------------------------------------------------------------------------------- graphs


def generated_graph(seed):
    """A random graph of dense layers, products and sums with two to four outputs in any structure."""
    rng = np.random.default_rng(seed)
    inputs = [keras.Input((4,)) for _ in range(rng.integers(1, 3))]
    tensors = [layers.Dense(4, activation="tanh")(each) for each in inputs]
    if len(tensors) > 1:
        tensors.append(layers.Add()(tensors))
    repeated = layers.Dense(4, activation="sigmoid")
    for _ in range(rng.integers(3, 9)):
        one, other = (tensors[i] for i in rng.integers(len(tensors), size=2))
        kind = rng.integers(6)
        if kind == 0:
            tensors.append(layers.Add()([one, other]))
        elif kind == 1:
            tensors.append(layers.Multiply()([one, other]))
        elif kind == 2:
            tensors.append(layers.Dense(4)(layers.Concatenate()([one, other, inputs[0]])))
        elif kind == 3:
            tensors.append(repeated(one))
        elif kind == 4:
            inner = keras.Input((4,))
            nested = keras.Model(inner, [layers.Dense(4, activation="tanh")(inner), layers.Dense(4)(inner)])
            tensors.extend(nested(one))
        else:
            tensors.append(layers.BatchNormalization()(layers.Dense(4, kernel_regularizer="l2")(one)))
    count = int(rng.integers(2, 5))
    ends = [layers.Dense(int(rng.integers(1, 4)), name=f"out{k}")(tensors[-1 - int(k > 0) * k]) for k in range(count)]
    if rng.random() < 0.3:  # an output that another one reads
        ends[-1] = layers.Dense(1, name="reads_another")(layers.Concatenate()([ends[0], tensors[-1]]))
    structure = [ends, tuple(ends), {f"key{k}": end for k, end in enumerate(ends)}][int(rng.integers(3))]
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], structure)


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # Keras: some layers of nested models have no successor
@pytest.mark.parametrize("seed", range(20))
def test_generated_graphs(seed):
    keras.utils.set_random_seed(seed)
    model = generated_graph(seed)
    inputs = [normal(4, seed=k) for k in range(len(model.inputs))]
    assert_same(model, inputs if len(inputs) > 1 else inputs[0], tolerance=2e-6)


@pytest.mark.parametrize("structure", ["nested dict", "nested list", "dict"])
def test_every_structure_of_outputs(structure):
    inputs, hidden = trunk()
    a, b, c = (layers.Dense(1, name=name)(hidden) for name in ("a", "b", "c"))
    outputs = {
        "dict": {"z": a, "y": b, "x": c},
        "nested dict": {"z": a, "inner": {"p": b, "q": c}},
        "nested list": [a, [b, c]],
    }[structure]
    trainer = assert_same(keras.Model(inputs, outputs), normal(6))
    expected = {"dict": ["x", "y", "z"], "nested dict": ["b", "c", "a"]}.get(structure, ["a", "b", "c"])
    assert list(trainer.heads) == expected


def test_a_skip_connection_over_the_boundary_and_an_input_of_one_head_are_part_of_the_representation():
    inputs, other = keras.Input((6,), name="one"), keras.Input((3,), name="other")
    hidden = layers.Dense(4, activation="tanh", name="trunk")(inputs)
    a = layers.Dense(1, name="a")(layers.Concatenate()([hidden, inputs]))
    b = layers.Dense(1, name="b")(layers.Concatenate()([hidden, other]))
    trainer = assert_same(keras.Model([inputs, other], [a, b]), [normal(6), normal(3)])
    assert set(trainer.encoder.output) == {"trunk", "one", "other"}


def test_a_layer_that_two_outputs_share_and_one_that_encoder_and_head_share():
    inputs, hidden = trunk(6)
    shared, twice = layers.Dense(2, name="shared"), layers.Dense(6, name="twice", activation="tanh")
    first = twice(hidden)
    a, b = shared(layers.Dense(3)(first)), shared(layers.Dense(3)(twice(first)))
    trainer = assert_same(keras.Model(inputs, [a, b]), normal(6))
    assert list(trainer.heads) == ["shared", "shared_1"]


@pytest.mark.parametrize("representation", [None, "second"])
def test_layers_that_are_called_on_the_inputs_of_each_output_become_the_encoder(representation):
    one, other = keras.Input((6,), name="one"), keras.Input((6,), name="other")
    first, second = layers.Dense(5, "tanh", name="first"), layers.Dense(4, "tanh", name="second")
    outputs = {"a": layers.Dense(1, name="a")(second(first(one))), "b": layers.Dense(2, name="b")(second(first(other)))}
    model = keras.Model([one, other], outputs)
    trainer = assert_same(model, [normal(6), normal(6) + 1], representation=representation)
    assert trainer.encoder.count_params() == 6 * 5 + 5 + 5 * 4 + 4
    assert [trainer.heads[name].module.count_params() for name in "ab"] == [4 + 1, 2 * 4 + 2]


def test_experts_become_the_encoder_and_gates_and_towers_belong_to_their_heads():
    """A functional mixture of experts, as other libraries make it; the boundary is where the heads' paths part."""
    inputs = keras.Input((5,))
    experts = [layers.Dense(4, activation="tanh", name=f"expert_{index}")(inputs) for index in range(3)]
    stacked = layers.Reshape((3, 4))(layers.Concatenate()(experts))
    heads = {}
    for name in ("click", "purchase"):
        gate = layers.Dense(3, activation="softmax", name=f"gate_{name}")(inputs)
        mixed = layers.Dot(axes=1)([gate, stacked])
        heads[name] = layers.Dense(1, name=name)(layers.Dense(2, activation="relu", name=f"tower_{name}")(mixed))
    trainer = assert_same(keras.Model(inputs, heads), normal(5))
    assert {each.name for each in trainer.encoder.layers} >= {f"expert_{index}" for index in range(3)}
    for name in ("click", "purchase"):
        names = {each.name for each in trainer.heads[name].module.layers}
        assert names >= {f"gate_{name}", f"tower_{name}", name} and not any(each.startswith("expert") for each in names)


def test_dict_inputs_and_a_mask_that_crosses_the_boundary(tmp_path):
    ids = keras.Input((5,), dtype="int32", name="ids")
    numbers = keras.Input((2,), name="numbers")
    embedded = layers.Embedding(9, 4, mask_zero=True)(ids)
    states = layers.SimpleRNN(6, return_sequences=True, name="states")(embedded)
    tags = layers.Dense(2, name="tags")(states)
    price = layers.Dense(1, name="price")(layers.Concatenate()([layers.GlobalAveragePooling1D()(states), numbers]))
    model = keras.Model({"ids": ids, "numbers": numbers}, {"tags": tags, "price": price})
    given = {"ids": np.random.default_rng(0).integers(0, 9, (NUM_EXAMPLES, 5)).astype("int32"), "numbers": normal(2)}
    given["ids"][:, 0] = 1  # no row of padding alone
    trainer = assert_same(model, given)
    assert set(trainer.encoder.output) >= {"states", "numbers"}  # Keras 3 also passes the mask as a tensor
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")  # Keras's warning of masks that are destroyed is an error
    for name, values in trainer.predict(given, verbose=0).items():
        np.testing.assert_array_equal(loaded.predict(given, verbose=0)[name], values)


@pytest.mark.parametrize("representation", ["middle", ["trunk", "middle"], "trunk", "forked"])
def test_the_boundary_stands_where_the_user_wants_it(representation):
    inputs, hidden = trunk()
    middle = layers.Dense(5, activation="tanh", name="middle")(hidden)
    forked = layers.Dense(4, activation="tanh", name="forked")(middle)
    model = keras.Model(inputs, [layers.Dense(1, name="a")(forked), layers.Dense(1, name="b")(middle)])
    trainer = assert_same(model, normal(6), representation=representation)
    expected = {"trunk": {"trunk"}, "middle": {"middle"}, "forked": {"forked", "middle"}}
    output = trainer.encoder.output
    found = set(output) if isinstance(output, dict) else {output._keras_history[0].name}
    assert found == expected.get(representation if isinstance(representation, str) else "middle")


# ------------------------------------------------------------------------------------------- Keras's own models


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DenseNet121", "EfficientNetV2B0", "MobileNetV2", "NASNetMobile", "ResNet50V2"])
def test_models_of_keras_with_two_heads(name):
    keras.utils.set_random_seed(0)
    base = getattr(keras.applications, name)(include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg")
    features = base.output
    model = keras.Model(base.input, [layers.Dense(3, name="kind")(features), layers.Dense(1, name="size")(features)])
    images = np.random.default_rng(0).uniform(0, 255, (4, 32, 32, 3)).astype("float32")
    assert_same(model, images, optimizer=keras.optimizers.SGD(1e-3))
    keras.backend.clear_session()  # or the models of all tests stay in memory


# ------------------------------------------------------------------------------------------- what was compiled


def three_outputs():
    inputs, hidden = trunk()
    return keras.Model(inputs, [layers.Dense(2, name=name)(hidden) for name in ("a", "b", "c")])


KERAS_2 = keras.__version__ < "3"
FORMS = {
    "weights in a dict": {"loss": dict.fromkeys("abc", "mse"), "loss_weights": {"a": 0.1, "b": 0.2, "c": 3.0}},
    "metrics in a dict": {"loss": "mse", "metrics": {"a": "mae", "c": ["mse", keras.metrics.MeanAbsoluteError(name="m")]}},
    "one loss": {"loss": keras.losses.Huber()},
    "a list": {"loss": ["mse", keras.losses.mean_absolute_error, keras.losses.Huber()]},
    "a dict": {"loss": {"a": "mse", "b": "mae", "c": "log_cosh"}},
    "lists of metrics": {"loss": "mse", "metrics": [["mae"], [], ["mse", "mae"]]},
    "weighted metrics": {"loss": "mse", "metrics": {"b": ["mae"]}, "weighted_metrics": {"a": ["mae"]}},
    **(
        {"metrics for all": {"loss": "mse", "metrics": ["mae", "mse"]}, "one metric": {"loss": "mse", "metrics": "mae"}}
        if KERAS_2
        else {}
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_losses_and_metrics(form):
    assert_same(three_outputs(), normal(6), **FORMS[form])


@pytest.mark.first_cases(3)
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@pytest.mark.parametrize("losses", [{"left": "mse", "right": "mae"}, {"right": "mse"}, {"left": "mse"}])
def test_the_keys_of_outputs_come_before_the_names_of_layers(losses):
    x, targets = normal(6), {"left": normal(1), "right": normal(1) + 3}
    inputs, hidden = trunk()
    outputs = {"left": layers.Dense(1, name="right")(hidden), "right": layers.Dense(1, name="left")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.05), losses, loss_weights=dict.fromkeys(losses, 0.5), **PLAIN)
    before = model.get_weights()
    expected = model.fit(x, targets, shuffle=False, verbose=0).history["loss"], model.get_weights()
    model.set_weights(before)
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile(**PLAIN)
    history = trainer.fit(x, {name: targets[name] for name in losses}, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected[0], rtol=1e-5)
    for one, other in zip(model.get_weights(), expected[1]):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_key_of_an_output_is_the_name_of_a_layer_before_another():
    inputs, hidden = trunk()
    raw = layers.Dense(1, name="price")(hidden)
    outputs = {"raw": raw, "price": layers.Rescaling(10.0, name="out")(raw), "aux": layers.Dense(1, name="aux")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss={"price": "mse", "aux": "mae"}, metrics={"price": "mae"})
    heads = MultiHeadTrainer.from_model(model).heads
    assert heads["raw"].loss is None and heads["price"].loss == "mse"
    assert [len(heads[name].metrics) for name in ("raw", "price", "aux")] == [0, 1, 0]


@pytest.mark.parametrize("key", ["price (EUR)", "é", " ", "a-b", "_a"])
def test_a_key_that_is_no_name_of_a_layer_is_the_name_of_a_head(key):
    inputs, hidden = trunk()
    model = keras.Model(inputs, {key: layers.Dense(1)(hidden), "b": hidden})
    model.compile("sgd", {"b": "mse"})
    trainer = MultiHeadTrainer.from_model(model)
    trainer.add_head("c", layers.Dense(1), "mse")
    trainer.compile()
    logs = trainer.fit(normal(6), {name: trainer(normal(6))[name] for name in "bc"}, verbose=0).history
    assert set(trainer.heads) == {key, "b", "c"} and {"b_loss", "c_loss"} <= set(logs)


@pytest.mark.parametrize("eagerly", [None, False, True])
def test_a_model_that_runs_eagerly_is_trained_eagerly_unless_said_otherwise(eagerly):
    inputs, hidden = trunk()
    model = keras.Model(inputs, {name: layers.Dense(1, name=name)(hidden) for name in "ab"})
    model.compile("sgd", {"a": "mse", "b": "mae"}, run_eagerly=True)
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile(run_eagerly=eagerly)
    assert trainer.run_eagerly is (eagerly is not False)


def test_an_output_without_a_loss_is_predicted_and_not_trained():
    model = three_outputs()
    model.compile("sgd", loss=["mse", None, "mae"])
    trainer = MultiHeadTrainer.from_model(model)
    assert trainer.heads["b"].loss is None
    trainer.compile()
    before = model.get_layer("b").get_weights()
    trainer.fit(normal(6), {"a": normal(2), "c": normal(2)}, verbose=0)
    assert set(trainer.predict(normal(6), verbose=0)) == {"a", "b", "c"}
    for one, other in zip(before, model.get_layer("b").get_weights()):
        np.testing.assert_array_equal(one, other)


def test_a_saved_trainer_of_a_model_predicts_and_trains_as_before(tmp_path):
    model = three_outputs()
    model.compile("sgd", "mse")
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile()
    data = normal(6), dict.fromkeys("abc", normal(2))
    trainer.fit(*data, verbose=0)
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    for each in (trainer, loaded):
        each.fit(*data, verbose=0, shuffle=False)
    for one, other in zip(trainer.get_weights(), loaded.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def shared_by(where):
    """A model of three outputs, and a layer, a nested model or a nested layer that several of its parts call."""
    inputs = keras.Input((6,))
    shared = layers.Dense(6, activation="tanh", name="shared")
    if where.endswith("a model"):
        symbol = keras.Input((6,))
        shared = keras.Model(symbol, layers.Dense(6)(layers.Dense(5, activation="tanh")(symbol)), name="shared")
    elif where.endswith("a sequence"):
        shared = keras.Sequential([keras.Input((6,)), layers.Dense(6, activation="tanh")], name="shared")
    in_encoder = where.startswith("encoder")
    hidden = layers.Dense(6, activation="tanh")(shared(shared(inputs)) if in_encoder else inputs)
    a, b = shared(hidden), shared(layers.Dense(6)(hidden))
    b = shared(b) if where.startswith("twice") else b
    return keras.Model(
        inputs, {name: layers.Dense(2, name=name)(each) for name, each in (("a", a), ("b", b), ("c", hidden))}
    )


SHARED = [
    "encoder and outputs",
    "outputs: a model",
    "outputs: a sequence",
    "outputs",
    "twice in an output",
    "encoder: a model",
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("where", SHARED)
def test_a_trainer_whose_parts_share_a_layer_is_saved_and_loaded(where, tmp_path):
    model = shared_by(where)
    model.compile("sgd", "mse", run_eagerly=True)
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile(run_eagerly=True)
    data = normal(6), dict.fromkeys("abc", normal(2))
    trainer.fit(*data, verbose=0)
    path = tmp_path / "trainer.keras"
    trainer.save(path)
    loaded = keras.models.load_model(path)
    loaded.save(path)  # also once more, by what was loaded
    expected = trainer.predict(data[0], verbose=0)
    for again in (loaded, keras.models.load_model(path)):
        assert len(again.trainable_weights) == len(trainer.trainable_weights)
        found = again.predict(data[0], verbose=0)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)
    for each in (trainer, loaded):
        each.fit(*data, verbose=0, shuffle=False)
    for one, other in zip(trainer.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------- errors


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs, inputs


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def one_output():
    inputs, hidden = trunk()
    return keras.Model(inputs, layers.Dense(1, name="only")(hidden))


def nothing_shared():
    inputs = keras.Input((6,), name="given")
    return keras.Model(inputs, [layers.Dense(1)(inputs), layers.Dense(1)(inputs)])


def all_in_one_nested_model():
    inputs = keras.Input((6,))
    nested = three_outputs()
    return keras.Model(inputs, nested(inputs))


def own_step():
    inputs, hidden = trunk()
    return OwnStep(inputs, [layers.Dense(1)(hidden), layers.Dense(1)(hidden)])


def misnamed_loss():
    model = three_outputs()
    model.compile("sgd", loss={"a": "mse", "misspelt": "mse"})
    return model


def nested_outputs(structure, loss):
    def make():
        inputs, hidden = trunk()
        model = keras.Model(inputs, structure(*(layers.Dense(1, name=name)(hidden) for name in "pqr")))
        model.compile("sgd", loss=loss)
        return model

    return make


def weighed_by(make):
    def weighed():
        model = three_outputs()
        model.compile("sgd", loss=dict.fromkeys("abc", "mse"), loss_weights=make(VARIABLE(0.5)))
        return model

    return weighed


def keyed_by(key):
    def keyed():
        inputs, hidden = trunk()
        return keras.Model(inputs, {key: layers.Dense(1)(hidden), "b": layers.Dense(1)(hidden)})

    return keyed


KEYS = ["a/b", "", "."]


def reduced_by(reduction):
    def reduced():
        model = three_outputs()
        model.compile("sgd", loss=["mse", keras.losses.Huber(reduction=reduction), "mae"])
        return model

    return reduced


BY_SUM = r"losses that are means over the batch\. Received: 'huber_loss' for 'b' with reduction='(none|sum)'.*`loss_weights`"
NESTED = r"`model` must be compiled with `loss`.*'[pqr]', '[pqr]', '[pqr]'\. The outputs are nested: build `keras.Model\("
VARIABLE = getattr(keras, "Variable", tf.Variable)
BY_VARIABLE = r"numbers as `loss_weights`\. Received: <.*> for 'b'.*call `trainer.set_weight\('b', value\)` in a callback"
ERRORS = [
    (
        nested_outputs(lambda p, q, r: {"p": p, "x": {"q": q, "r": r}}, {"p": "mse", "x": {"q": "mse", "r": "mae"}}),
        None,
        NESTED,
    ),
    (nested_outputs(lambda p, q, r: [p, [q, r]], ["mse", ["mse", "mae"]]), None, NESTED),
    (nested_outputs(lambda p, q, r: {"p": p, "x": [q, r]}, {"p": "mse", "x": ["mse", "mae"]}), None, NESTED),
    (
        nested_outputs(lambda p, q, r: {"p": {"x": p}, "q": q, "r": r}, {"p": {"x": "mse"}, "q": "mae", "r": "mse"}),
        None,
        NESTED,
    ),
    (nested_outputs(lambda p, q, r: {"p": [p], "q": q, "r": r}, {"p": ["mse"], "q": "mae", "r": "mse"}), None, NESTED),
    *((keyed_by(key), None, r"keys of outputs that can be names of heads.* with the keys \[.*\]\. Build") for key in KEYS),
    *((reduced_by(reduction), None, BY_SUM) for reduction in ("none", "sum")),
    (weighed_by(lambda variable: {"b": variable}), None, BY_VARIABLE),
    (weighed_by(lambda variable: [1.0, variable, 0.5]), None, BY_VARIABLE),
    (weighed_by(lambda variable: {"a": 1.0, "b": tf.Variable(0.5)}), None, BY_VARIABLE),
    (one_output, None, r"`model` must have at least two outputs.*'only'.*add_head"),
    (Subclassed, None, r"`model` must be a functional model.*Subclassed.*MultiHeadTrainer\(encoder\)"),
    (own_step, None, r"`model` must be a functional model.*OwnStep.*code of its own"),
    (nothing_shared, None, r"layers with weights that at least two outputs depend on.*'given'.*representation="),
    (all_in_one_nested_model, None, r"outside of nested models.*get_layer\("),
    (three_outputs, "trunkk", r"`representation` must be the name of a layer.*Received: representation="),
    (three_outputs, ["trunk", "none"], r"`representation` must be the name of a layer.*Received: representation="),
    (three_outputs, [], r"`representation` must be the name of a layer.*Received: representation="),
    (lambda: layers.Dense(1), None, "`model` must be a Keras model"),
    (misnamed_loss, None, r"`model` must be compiled with `loss` for its outputs.*misspelt.*'a', 'b', 'c'"),
]


@pytest.mark.first_cases(len(ERRORS))
@pytest.mark.parametrize(("make", "representation", "message"), ERRORS)
def test_models_that_cannot_be_taken_apart(make, representation, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MultiHeadTrainer.from_model(make(), representation=representation)


def test_the_short_name_of_a_crossentropy_that_depends_on_the_targets_is_refused():
    inputs = keras.Input([4])
    shared = layers.Dense(5, activation="tanh")(inputs)
    outputs = {"is_kind": layers.Dense(1, "sigmoid")(shared), "kind": layers.Dense(3, "softmax")(shared)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"is_kind": "mse", "kind": "crossentropy"})
    with pytest.raises(ValueError, match="`loss` must be a Keras loss. Received: .*'crossentropy'"):
        MultiHeadTrainer.from_model(model)
