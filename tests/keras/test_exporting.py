"""Heads leave as programs of their own."""

from __future__ import annotations

import functools
import re
import warnings
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import alone, tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

WORDS = ["red", "green", "blue", "wide"]

NAMES = ["low", "middle", "high"]

TEXTS = ["red wide", "", "blue blue שלום", "🙂"]


class Speller(keras.layers.Layer):
    """A head that reads its targets and, without them, gives the class and the number that it is told."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, representation, targets):
        return self.dense(representation) + 0.0 * tf.cast(targets, tf.float32)[:, tf.newaxis]

    def generate(self, representation, number=7):
        return {
            "letter": tf.argmax(self.dense(representation), axis=1),
            "number": tf.fill(tf.shape(representation)[:1], number),
        }


def words_trainer(**options):
    """An encoder with dropout on counts of words, with two heads, trained a little."""
    encoder = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dropout(0.5)])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("price", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer.add_head("letter", Speller(), loss, teacher_forcing=True)
    trainer.compile(keras.optimizers.Adam(0.1), **options)
    counts = np.random.default_rng(0).poisson(1.0, (24, len(WORDS) + 1)).astype("float32")
    labels = counts.argmax(axis=1) % 3
    trainer.fit(counts, {"price": labels, "letter": labels}, epochs=2, verbose=0)
    return trainer


@pytest.fixture(scope="module")
def shared():
    """One such trainer for all tests that only export."""
    return words_trainer()


def counts_of(texts):
    """How often each word stands in each text, unknown words first; by plain Python."""
    rows = [[word if word in WORDS else None for word in text.split()] for text in texts]
    return np.array([[row.count(word) for word in (None, *WORDS)] for row in rows], "float32")


def affine(layer, inputs):
    kernel, bias = layer.get_weights()
    return inputs @ kernel + bias


def expected(trainer, counts):
    """The probabilities of `price` and the logits of `letter`, by NumPy, without dropout."""
    hidden = np.tanh(affine(trainer.encoder.layers[0], counts))
    exponentials = np.exp(affine(trainer.heads["price"].module, hidden))
    return exponentials / exponentials.sum(axis=1, keepdims=True), affine(trainer.heads["letter"].module.dense, hidden)


def name_table():
    keys, values = tf.range(3, dtype=tf.int64), tf.constant(NAMES)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), "none")


def labels_from(table, probabilities):
    best = tf.argmax(probabilities, axis=1)
    return {"label": table.lookup(best), "probability": tf.reduce_max(probabilities, axis=1)}


def exports_of_heads(trainer):
    """The arguments of `export` by the name of a folder."""
    module = trainer.heads["letter"].module
    counter = keras.layers.TextVectorization(vocabulary=WORDS, output_mode="count", pad_to_max_tokens=False)
    learned = keras.layers.TextVectorization(output_mode="count", standardize=None)  # its table is filled later
    learned.adapt(tf.constant([" ".join(word for word, n in zip(WORDS, (5, 4, 3, 2)) for _ in range(n))]))
    assert learned.get_vocabulary() == ["[UNK]", *WORDS]
    holder = SimpleNamespace(inner=[{"counter": counter}])
    finish = {
        "letter": lambda output: output["letter"],
        "price": lambda probabilities: {"best": tf.argmax(probabilities, 1)},
    }
    return {
        "plain": {"heads": "price"},
        "layer": {"heads": "price", "preprocess": learned},
        "function": {
            "heads": "price",
            "preprocess": lambda texts: tf.cast(holder.inner[0]["counter"](texts), tf.float32),
            "inputs": tf.TensorSpec([None], tf.string, name="texts"),
            "postprocess": functools.partial(labels_from, name_table()),
        },
        "generated": {"heads": "letter"},
        "told": {"heads": "letter", "generate": lambda hidden: module.generate(hidden, number=9)},
        "finished": {"heads": "letter", "postprocess": lambda output: output["letter"] + 1},
        "all": {},
        "some": {"heads": ["letter"], "postprocess": {"letter": lambda output: output["letter"] + 1}},
        "both finished": {"heads": ["price", "letter"], "postprocess": finish},
    }


@pytest.mark.programs
def test_heads_alone_answer_as_numpy_does(shared, tmp_path):
    """In a process that has neither Keras nor this package."""
    exports = {name: options for name, options in exports_of_heads(shared).items() if name not in OF_SEVERAL}
    for name, options in exports.items():
        shared.export(tmp_path / name, **options)
    inputs = {"layer": {"inputs": TEXTS}, "function": {"texts": TEXTS}}
    asked = [(tmp_path / name, inputs.get(name, {"inputs": counts_of(TEXTS).tolist()})) for name in exports]
    got = dict(zip(exports, alone.answers(asked, tmp_path)))
    probabilities, logits = expected(shared, counts_of(TEXTS))
    for name in ("plain", "layer"):
        assert list(got[name]) == ["price"]
        np.testing.assert_allclose(got[name]["price"], probabilities, rtol=1e-5)
    assert got["function"]["label"] == [NAMES[best] for best in probabilities.argmax(axis=1)]
    np.testing.assert_allclose(got["function"]["probability"], probabilities.max(axis=1), rtol=1e-5)
    letters = logits.argmax(axis=1).tolist()
    assert got["generated"] == {"letter": letters, "number": [7] * 4}
    assert got["told"] == {"letter": letters, "number": [9] * 4}
    assert got["finished"] == {"letter": [letter + 1 for letter in letters]}


OF_SEVERAL = ("all", "some", "both finished")


def test_all_heads_in_one_answer_as_predict_does(shared, tmp_path):
    exports, got = exports_of_heads(shared), {}
    for name in OF_SEVERAL:
        shared.export(tmp_path / name, **exports[name])
        signature = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        got[name] = {key: answer.numpy() for key, answer in signature(inputs=tf.constant(counts_of(TEXTS))).items()}
        if name == "all":
            graph = signature.graph.as_graph_def()
    predicted = shared.predict(counts_of(TEXTS), verbose=0)
    assert set(got["all"]) == {"price", "letter_letter", "letter_number"}
    np.testing.assert_allclose(got["all"]["price"], predicted["price"], rtol=1e-6)
    for key in ("letter", "number"):
        np.testing.assert_array_equal(got["all"][f"letter_{key}"], predicted["letter"][key])
    assert list(got["some"]) == ["letter"] and set(got["both finished"]) == {"letter", "price_best"}
    np.testing.assert_array_equal(got["some"]["letter"], predicted["letter"]["letter"] + 1)
    np.testing.assert_array_equal(got["both finished"]["letter"], predicted["letter"]["letter"])
    np.testing.assert_array_equal(got["both finished"]["price_best"], predicted["price"].argmax(axis=1))
    operations = [node.op for function in graph.library.function for node in function.node_def]
    assert operations.count("Tanh") == 1  # the encoder, once for both heads


def test_heads_without_a_loop_run_in_tensorflow_lite(shared, tmp_path):
    """The way to TensorFlow Lite: from the SavedModel."""
    if not hasattr(tf, "lite"):
        pytest.skip("this TensorFlow has no converter")
    counts = counts_of(TEXTS)
    shared.export(tmp_path / "all")
    model = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "all")).convert()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow 2.21 wants another package to run it
        answer = tf.lite.Interpreter(model_content=model).get_signature_runner("serving_default")(inputs=counts)
    predicted = shared.predict(counts, verbose=0)
    np.testing.assert_allclose(answer["price"], predicted["price"], rtol=1e-5)
    np.testing.assert_array_equal(answer["letter_letter"], predicted["letter"]["letter"])


class Sum(keras.layers.Layer):
    """An encoder of a nest of inputs."""

    def call(self, inputs):
        return inputs["a"] + inputs["b"][0] * inputs["b"][1]


def test_inputs_are_named_by_their_keys(tmp_path):
    trainer = MultiHeadTrainer(Sum())
    trainer.add_head("y", keras.layers.Dense(2), "mse")
    ones = np.ones([3, 2], "float32")
    trainer.compile("sgd")
    trainer.compute_gradients(({"a": ones, "b": (2 * ones, 3 * ones)}, ones))
    trainer.export(tmp_path / "y", "y")
    signature = tf.saved_model.load(str(tmp_path / "y")).signatures["serving_default"]
    assert sorted(signature.structured_input_signature[1]) == ["a", "b_0", "b_1"]
    given = {"a": ones[:1], "b_0": ones[:1], "b_1": 2 * ones[:1]}
    result = signature(**{name: tf.constant(value) for name, value in given.items()})["y"]
    np.testing.assert_allclose(result, affine(trainer.heads["y"].module, 3 * ones[:1]), rtol=1e-6)
    same_name = {
        "a": tf.TensorSpec([None, 2], name="x"),
        "b": (tf.TensorSpec([None, 2], name="x"), tf.TensorSpec([None, 2])),
    }
    with pytest.raises(ValueError, match=r"`inputs` must have distinct names\. Received: 'x', 'b_1'\."):
        trainer.export(tmp_path / "z", "y", inputs=same_name)


FORMS = {
    "dict": (lambda ids, x: {"user": ids, "x": x}, {"user", "x"}),
    "list": (lambda ids, x: [ids, x], {"inputs_0", "inputs_1"}),
    "alone": (lambda ids, x: ids, {"inputs"}),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("declared", "first"), [("int64", "int32"), ("int32", "int64"), ("int64", "uint8")])
@pytest.mark.parametrize("form", FORMS)
def test_an_export_takes_the_dtypes_that_a_functional_encoder_declares(form, declared, first, tmp_path):
    nest, names = FORMS[form]
    inputs = nest(keras.Input((), dtype=declared, name="user"), keras.Input((2,), name="x"))
    ids, *others = tf.nest.flatten(inputs)
    features = keras.layers.Embedding(9, 2)(ids)
    trainer = MultiHeadTrainer(keras.Model(inputs, keras.layers.Concatenate()([features, *others]) if others else features))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile("sgd")
    x = nest(np.arange(6).astype(first), np.ones((6, 2)))
    trainer.fit(x, {"a": np.ones(6)}, verbose=0)
    trainer.export(tmp_path / "model")
    signature = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    specs = signature.structured_input_signature[1]
    dtypes = [declared, "float32"][: len(names)]
    assert set(specs) == names and sorted(spec.dtype.name for spec in specs.values()) == sorted(dtypes)
    values = {name: [[2, 3], [1, 8]] if spec.shape.rank == 2 else [1, 8] for name, spec in specs.items()}
    answer = signature(**{name: tf.constant(each, specs[name].dtype) for name, each in values.items()})["a"]
    expected = trainer.predict(nest(np.array([1, 8], declared), np.array([[2, 3], [1, 8]], "float32")), verbose=0)["a"]
    np.testing.assert_allclose(answer, expected, rtol=1e-5)


class OfTwo(keras.layers.Layer):
    """An encoder of two inputs, by name."""

    def __init__(self, name):
        super().__init__()
        self.key, self.dense = name, keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(tf.concat([inputs["p"], inputs[self.key]], axis=-1))


INPUT_NAMES = [
    "q2",
    "A_b9_",
    "a__b",
    "inputs",
    "training",
    "user id",
    "q-2",
    "a.b",
    "_x",
    "x__",
    "2x",
    "größe",
    "self",
    "class",
]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (i % 3 > 0)) for i, name in enumerate(INPUT_NAMES)]
)
def test_inputs_of_any_name_are_exported_or_refused_in_words(name, tmp_path):
    x = {"p": np.ones((2, 2), "float32"), name: np.ones((2, 1), "float32")}
    trainer = MultiHeadTrainer(OfTwo(name))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", run_eagerly=True)
    trainer.evaluate(x, {"a": np.ones((2, 1), "float32")}, verbose=0)
    expected, other = trainer.predict(x, verbose=0)["a"], name
    if INPUT_NAMES.index(name) < 5:
        trainer.export(tmp_path / "model")
    else:
        with pytest.raises(ValueError, match=rf"^`inputs` must have names .*Received: '{re.escape(name)}'\..*name='input_"):
            trainer.export(tmp_path / "model")
        other = "other"
        specs = {"p": tf.TensorSpec([None, 2], name="p"), name: tf.TensorSpec([None, 1], name=other)}
        trainer.export(tmp_path / "model", inputs=specs)
    signature = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    found = signature(**{"p": tf.constant(x["p"]), other: tf.constant(x[name])})
    np.testing.assert_allclose(found["a"], expected, atol=1e-6)


WRONG = [
    ({"heads": "prize"}, r"`heads` must be one of 'price', 'letter'\. Received: heads='prize'\. Did you mean"),
    ({"heads": ["price", "prize"]}, r"`heads` must be one of 'price', 'letter'\. Received: heads='prize'"),
    ({"heads": []}, r"`heads` must be one of 'price', 'letter'\. Received: heads=\[\]"),
    (
        {"heads": None, "postprocess": tf.identity},
        r"`postprocess` must be a dict by head name if several heads are exported\. Received: .*Pass, for example, \{'price'",
    ),
    ({"heads": None, "generate": {"prize": tf.identity}}, r"`generate` must name only heads: 'prize'"),
    ({"preprocess": "lower"}, r"`preprocess` must be callable\. Received: preprocess='lower'\."),
    ({"generate": 1}, r"`generate` must be callable\. Received: generate=1\."),
    ({"inputs": "texts"}, r"`inputs` must be a tf\.TensorSpec or a nest of them\. Received: inputs='texts'"),
    (
        {"preprocess": tf.strings.to_number},
        r"`preprocess` must return the encoder's inputs: TensorSpec\(shape=\(None, 5\).*Received: Tensor",
    ),
    ({"preprocess": tf.strings.split}, r"`preprocess` must return.*Received: tf\.Ragged.*`to_tensor\(\)`"),
    ({"postprocess": lambda p: [p]}, r"`postprocess` must return a tensor or a dict of tensors by name\. Received: \["),
    ({"postprocess": lambda p: {}}, r"`postprocess` must return .*Received: \{\}"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_cannot_be_exported(options, message, shared, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        shared.export(**{"heads": "price", "filepath": tmp_path / "x", **options})
    assert not (tmp_path / "x").exists()
    (tmp_path / "x").write_text("")
    with pytest.raises(ValueError, match=r"`filepath` must be a folder or a new path\. Received: .*x', which is a file\."):
        shared.export(tmp_path / "x", "price")


def test_a_table_that_cannot_be_found(shared, tmp_path):
    table = name_table()
    handle = table.resource_handle  # the function holds no more of the table than this

    def postprocess(probabilities):
        return tf.raw_ops.LookupTableFindV2(
            table_handle=handle, keys=tf.argmax(probabilities, axis=1), default_value=tf.constant("none")
        )

    assert postprocess(tf.eye(3)).numpy().tolist() == [name.encode() for name in NAMES]
    with pytest.raises(ValueError, match=r"`preprocess` and `postprocess` may use only lookup tables .* Received: 1 that"):
        shared.export(tmp_path / "x", "price", postprocess=postprocess)
    del table


def test_a_head_without_variables_yet(tmp_path):
    trainer = tiny.trainer(heads=("price",))
    trainer.predict(tiny.data(4)[0], verbose=0)  # which has no targets
    message = r"`heads` must be built before `export`, .* Received: heads='{}', without targets since it was added\. Call"
    with pytest.raises(ValueError, match=message.format("price")):
        trainer.export(tmp_path / "x", "price")
    inputs, targets = tiny.data(4)
    trainer.compute_gradients((inputs, {"price": targets["price"]}))
    trainer.add_head("late", tiny.On("mean", 2), "mse")
    with pytest.raises(ValueError, match=message.format("late")):
        trainer.export(tmp_path / "x", "late")
    trainer.export(tmp_path / "x", "price")
    assert (tmp_path / "x" / "saved_model.pb").is_file()
