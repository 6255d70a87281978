"""Losses and modules that compare the rows of a batch: they say so, and get the labelled rows, whole, and no others."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import coupled, tiny
from tests.helpers.cases import quick

pytestmark = [pytest.mark.usefixtures("eager_updates"), pytest.mark.first_cases(3)]  # the others are thorough

RATE = 0.1


def units(name):
    return 4 if name in coupled.CLASSES else 1


def trainer_of(loss, module, compiled=None, optimizer=None, **options):
    keras.utils.set_random_seed(3)
    trainer = MultiHeadTrainer(keras.layers.Dense(6, activation="tanh"))
    trainer.add_head("a", module, loss, **options)
    trainer.compile(optimizer or keras.optimizers.SGD(RATE), **(compiled or {}))
    return trainer


def built(name, compiled=None, **options):
    _, _, _, of_labels = coupled.data(name)
    module = keras.layers.Dense(units(name))
    return trainer_of(coupled.COUPLED[name], module, compiled, couples_rows=True, **of_labels, **options)


def variables_of(trainer):
    return [*trainer.encoder.trainable_variables, *trainer.heads["a"].module.trainable_variables]


def after_a_step(trainer, parts, loss):
    """The loss and the variables after one step by a tape, on the labelled rows of each part alone."""
    variables = [tiny.tensor_variable(each) for each in variables_of(trainer)]
    with tf.GradientTape() as tape:
        found = [
            coupled.total(loss, tf.constant(y[k]), trainer.heads["a"].module(trainer.encoder(x[k]))) for x, y, k in parts
        ]
        value = tf.add_n([each for each, _ in found]) / tf.add_n([count for _, count in found])
    gradients = tape.gradient(value, variables)
    return float(value), [v.numpy() - RATE * tf.convert_to_tensor(g).numpy() for v, g in zip(variables, gradients)]


def assert_step(trainer, batches, parts, loss, logged="loss"):
    """Fits one update, and compares it with the tape."""
    trainer.heads["a"].module(trainer.encoder(parts[0][0]))  # builds both
    value, wanted = after_a_step(trainer, parts, loss)
    history = trainer.fit(batches, verbose=0, epochs=1).history
    np.testing.assert_allclose(history[logged], [value], rtol=2e-5)
    for one, other in zip(tiny.values(variables_of(trainer)), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


NUMBERS_OF_ROWS = [name for name in coupled.COUPLED if name not in ("correlation", "Decorrelated")]
"""Those that return more than one number for all rows."""


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", [*coupled.OF_THE_BATCH, *NUMBERS_OF_ROWS])
def test_undeclared_it_gets_the_labelled_rows_alone(name):
    """However few of the rows it compares, nothing but labels is compared."""
    x, y, labelled, options = coupled.data(name)
    trainer = trainer_of(coupled.ALL[name], keras.layers.Dense(units(name)), **options)
    assert_step(trainer, tf.data.Dataset.from_tensors((x, {"a": y})), [(x, y, labelled)], coupled.ALL[name])
    found = trainer.evaluate(x, {"a": y}, batch_size=len(x), verbose=0, return_dict=True)
    p = trainer.heads["a"].module(trainer.encoder(x[labelled]))
    total, count = coupled.total(coupled.ALL[name], tf.constant(y[labelled]), p)
    np.testing.assert_allclose(found["a_loss"], float(total / count), rtol=2e-5)


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=str)
def test_undeclared_with_sample_weights_and_batches_without_labels(options):
    x, y, labelled, _ = coupled.data("cox")
    weights = np.random.default_rng(2).integers(0, 3, 16).astype("float32")
    trainer = trainer_of(coupled.cox, keras.layers.Dense(1), {"run_eagerly": False, **options})
    empty = np.full(16, np.nan, "float32")
    parts = [(x, {"a": y}, {"a": weights}), (x, {"a": empty}, {"a": weights})]
    spec = tf.TensorSpec([16])
    data = tf.data.Dataset.from_generator(
        lambda: iter(parts), output_signature=(tf.TensorSpec([16, 5]), {"a": spec}, {"a": spec})
    ).apply(tf.data.experimental.assert_cardinality(2))
    found = trainer.evaluate(data, verbose=0, return_dict=True)
    kept = labelled & (weights > 0)
    values = coupled.cox(tf.constant(y[kept]), trainer.heads["a"].module(trainer.encoder(x[kept]))).numpy()
    np.testing.assert_allclose(found["a_loss"], (weights[kept] * values).sum() / weights[kept].sum(), rtol=2e-5)
    if options.get("gradient_accumulation_steps"):
        np.testing.assert_allclose(trainer.fit(data, verbose=0).history["a_loss"], found["a_loss"], rtol=2e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"micro_batches": 2},
            "where `micro_batches` splits a batch.*None with 2 parts.*`couples_rows=False`.*leave it out",
        ),
        (
            {"jit_compile": True},
            "with `jit_compile`.*Received: couples_rows=None with jit_compile=True.*`couples_rows=False`",
        ),
    ],
)
def test_what_splits_a_batch_asks_for_a_declaration(options, words, two_replicas):
    def squared(y, p):
        return (y - p) ** 2

    message = rf"`couples_rows` of head 'a' must be set {words}"
    with pytest.raises(ValueError, match=message):
        trainer_of(squared, keras.layers.Dense(1), options)
    with (
        pytest.raises(ValueError, match="`couples_rows` of head 'a' must be set where `strategy` splits a batch"),
        two_replicas.scope(),
    ):
        trainer_of(squared, keras.layers.Dense(1))
    for loss, said in ((squared, False), ("mse", None)):  # a loss of Keras need not say it
        trainer_of(loss, keras.layers.Dense(1), options, couples_rows=said)


def hardest_elements(y, p):
    """The two largest errors of a batch."""
    errors = tf.abs(y - p)
    return errors * tf.cast(errors >= tf.math.top_k(tf.reshape(errors, [-1]), 2).values[1], errors.dtype)


@pytest.mark.parametrize("way", ["labels", "weights", "mask"])
def test_rows_that_have_some_of_their_labels_ask_for_a_declaration(way):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4, 5)).astype("float32"), rng.normal(size=(8, 4, 1)).astype("float32")
    weights = None
    if way == "labels":
        y[2, 1] = np.nan
    elif way == "weights":
        weights = {"a": (np.arange(32).reshape(8, 4) != 9).astype("float32")}
    else:
        x[2, 1] = 0.0
    trainers = []
    for said in (None, False):
        keras.utils.set_random_seed(0)
        trainer = MultiHeadTrainer(keras.Sequential([keras.layers.Masking(), keras.layers.Dense(3)]))
        trainer.add_head("a", keras.layers.Dense(1), hardest_elements, couples_rows=said)
        trainer.compile("sgd")
        trainers.append(trainer)
    message = (
        r"`targets\['a'\]` must be missing for a whole row or not at all, since the loss 'hardest_elements' may compare a "
        r"label with the others of its row\. Received: .*1 of 8 rows break this.*`couples_rows=False`"
    )
    with pytest.raises(ValueError, match=message):
        trainers[0].fit(x, {"a": y}, sample_weight=weights, verbose=0)
    trainers[1].fit(x, {"a": y}, sample_weight=weights, verbose=0)
    whole = np.where(np.arange(8)[:, None, None] == 2, np.nan, np.nan_to_num(y)).astype("float32")
    trainers[0].fit(np.abs(x) + 1, {"a": whole}, verbose=0)


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("name", coupled.COUPLED)
def test_it_gets_the_labelled_rows_alone(name):
    x, y, labelled, _ = coupled.data(name)
    trainer = built(name)
    data = tf.data.Dataset.from_tensors((x, {"a": y}))
    assert_step(trainer, data, [(x, y, labelled)], coupled.COUPLED[name])
    found = trainer.evaluate(x, {"a": y}, batch_size=len(x), verbose=0, return_dict=True)
    p = trainer.heads["a"].module(trainer.encoder(x[labelled]))
    total, count = coupled.total(coupled.COUPLED[name], tf.constant(y[labelled]), p)
    np.testing.assert_allclose(found["a_loss"], float(total / count), rtol=2e-5)


@pytest.mark.parametrize("name", quick(1, ["cox", "pairs", "correlation", "batch_hard", "pairs_by_row"]))
def test_accumulated_batches_add_their_sums_and_counts(name):
    parts = [coupled.data(name, rows, seed=rows)[:3] for rows in (9, 14)]
    data = tf.data.Dataset.from_generator(
        lambda: ((x, {"a": y}) for x, y, _ in parts),
        output_signature=(tf.TensorSpec([None, 5]), {"a": tf.TensorSpec([None], parts[0][1].dtype)}),
    )
    trainer = built(name, {"gradient_accumulation_steps": 2, "balancer": "EqualNorms", "run_eagerly": False})
    assert_step(trainer, data.apply(tf.data.experimental.assert_cardinality(2)), parts, coupled.COUPLED[name], "a_loss")


def test_rows_without_labels_and_batches_without_any():
    x, y, _, _ = coupled.data("cox")
    trainer = built("cox")
    before = tiny.values(variables_of(trainer)) if trainer.built else None
    trainer.fit(x, {"a": y}, sample_weight={"a": np.ones(16, "float32")}, batch_size=16, verbose=0)
    before = tiny.values(variables_of(trainer))
    nothing = tf.data.Dataset.from_tensors((x, {"a": np.full(16, np.nan, "float32")}))
    with pytest.warns(RuntimeWarning, match="no head had labels"):
        trainer.fit(nothing, verbose=0)
    for one, other in zip(tiny.values(variables_of(trainer)), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(trainer.evaluate(nothing, verbose=0, return_dict=True)["a_loss"])


def test_sample_weights_weigh_values_of_rows_and_leave_rows_out():
    x, y, labelled, _ = coupled.data("cox")
    weights = np.random.default_rng(2).integers(0, 3, 16).astype("float32")
    trainer = built("cox")
    trainer.fit(x, {"a": y}, verbose=0)
    found = trainer.evaluate(x, {"a": y}, sample_weight={"a": weights}, batch_size=16, verbose=0, return_dict=True)
    kept = labelled & (weights > 0)
    values = coupled.cox(tf.constant(y[kept]), trainer.heads["a"].module(trainer.encoder(x[kept]))).numpy()
    np.testing.assert_allclose(found["a_loss"], (weights[kept] * values).sum() / weights[kept].sum(), rtol=2e-5)


@pytest.mark.parametrize("name", ["correlation", "pairs"])
def test_one_number_for_all_rows_cannot_be_weighted(name):
    x, y, labelled, _ = coupled.data(name)
    trainer = built(name)
    with pytest.raises(ValueError, match=r"`sample_weights\['a'\]` must be 0 or 1.*one number for all rows.*Received: 2"):
        trainer.fit(x, {"a": y}, sample_weight={"a": np.full(16, 2, "float32")}, verbose=0)
    weights = (np.arange(16) < 9).astype("float32")
    found = trainer.evaluate(x, {"a": y}, sample_weight={"a": weights}, batch_size=16, verbose=0, return_dict=True)
    kept = labelled & (weights > 0)
    total, count = coupled.total(
        coupled.COUPLED[name], tf.constant(y[kept]), trainer.heads["a"].module(trainer.encoder(x[kept]))
    )
    np.testing.assert_allclose(found["a_loss"], float(total / count), rtol=2e-5)


def test_what_splits_a_batch_is_refused(two_replicas):
    words = "`micro_batches` must not split the batches of head 'a'.*Received: 2 parts.*gradient_accumulation_steps"
    with pytest.raises(ValueError, match=words):
        built("cox", {"micro_batches": 2})
    with two_replicas.scope(), pytest.raises(ValueError, match="`strategy` must not split.*Use one replica"):
        built("cox")


class Triplets(keras.layers.Layer):
    """Batch-hard triplets of the representation, by the labels that it reads."""

    def call(self, h, y):
        return coupled.batch_hard(y, h)[:, None]

    def generate(self, h):
        return h


class Agreement(keras.layers.Layer):
    """The probability that a row's other view is its own, among those of all rows."""

    def call(self, h):
        one, other = tf.split(h, 2, axis=-1)
        logits = tf.matmul(one, other, transpose_b=True)
        return -tf.linalg.diag_part(tf.nn.log_softmax(logits))[:, None]


def as_it_is(_, p):
    return p


@pytest.mark.parametrize(("module", "reads_labels"), [(Triplets, True), (Agreement, False)])
def test_a_module_that_compares_rows(module, reads_labels):
    x, y, labelled, options = coupled.data("batch_hard")
    options["teacher_forcing"] = reads_labels
    trainer = trainer_of(as_it_is, module(), couples_rows=True, metrics=["mean_absolute_error"], **options)
    trainer.fit(x, {"a": y}, verbose=0)
    found = trainer.evaluate(x, {"a": y}, batch_size=16, verbose=0, return_dict=True)
    h = trainer.encoder(x[labelled])
    values = module()(h, tf.constant(y[labelled])) if reads_labels else module()(h)
    np.testing.assert_allclose(found["a_loss"], tf.reduce_mean(values), rtol=2e-5)
    errors = np.abs(np.ravel(values) - y[labelled])
    np.testing.assert_allclose(found["a_mean_absolute_error"], errors.mean(), rtol=2e-5)


def gathered(y, p):
    p = tf.math.log(tf.nn.softmax(p))
    return -tf.gather(p, tf.cast(tf.reshape(y, [-1]), tf.int32), batch_dims=1)


def along_time(y, p):  # compares the steps of a row, not the rows
    return tf.reduce_mean((p[:, 1:] - p[:, :-1] - y[:, 1:] + y[:, :-1]) ** 2, axis=[1, 2])


def strict(y, p):
    with tf.control_dependencies([tf.debugging.assert_less(tf.abs(y), 0.5)]):  # which made-up rows break
        return (y - p) ** 2


def of_actions(y, p):  # fails for some of the made-up rows, which are no classes
    actions = tf.cast(y[:, 0], tf.int32)
    return y[:, 1] * tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=p)


def ordered(y, p):  # an `if` on a tensor
    if tf.reduce_sum(y) > 1e9:
        return tf.abs(y - p)
    return (y - p) ** 2


@tf.function
def compiled(y, p):
    return (y - p) ** 2


INDEPENDENT = [
    (gathered, (), 3),
    (along_time, (4,), 2),
    (strict, (), 1),
    (of_actions, (), 2),
    (ordered, (), 1),
    (compiled, (), 1),
]


@pytest.mark.parametrize(("loss", "steps", "width"), INDEPENDENT)
def test_a_loss_of_independent_rows_is_accepted(loss, steps, width):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, *steps, 5)).astype("float32")
    y = rng.uniform(0, 0.4, (8, *steps, 1 if loss is gathered else width)).astype("float32")
    if loss is ordered and keras.__version__ >= "3":
        pytest.skip("Keras 3 does not convert such an `if`")
    trainer = trainer_of(loss, keras.Sequential([keras.layers.Dense(width), keras.layers.BatchNormalization()]))
    assert np.isfinite(trainer.fit(x, {"a": y}, verbose=0).history["loss"]).all()


def test_it_is_saved(tmp_path):
    keras.saving.register_keras_serializable("coupled")(coupled.cox)
    x, y, labelled, _ = coupled.data("cox")
    trainer = built("cox")
    trainer.fit(x, {"a": y}, verbose=0)
    trainer.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (trainer, loaded):
        each.fit(x, {"a": y}, verbose=0)
    np.testing.assert_allclose(*(tiny.values(variables_of(each))[0] for each in (trainer, loaded)), atol=1e-6)


@pytest.mark.parametrize(("number", "eagerly"), [(7, True), (16, False)])
def test_masks_and_what_belongs_to_no_row_pass_through(number, eagerly):
    """Even if there are as many of them as examples in the batch."""

    class Encoder(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(6)
            self.anchors = self.add_weight(shape=(number, 6), initializer="ones", name="anchors")

        def call(self, x):
            return {"rows": self.dense(x), "anchors": tf.convert_to_tensor(self.anchors) * 1.0}

    class Head(keras.layers.Layer):
        def call(self, h):
            return tf.reduce_sum(h["rows"][:, None] * h["anchors"][None], axis=[1, 2])[:, None]

    x, y, labelled, _ = coupled.data("cox")
    trainer = MultiHeadTrainer(Encoder())
    trainer.add_head("a", Head(), coupled.cox, couples_rows=True)
    trainer.compile("sgd", run_eagerly=eagerly)
    data = tf.data.Dataset.from_tensor_slices((x, {"a": y})).batch(16, drop_remainder=True)
    trainer.fit(data, verbose=0)
    found = trainer.evaluate(data, verbose=0, return_dict=True)
    values = coupled.cox(tf.constant(y[labelled]), Head()(trainer.encoder(tf.constant(x[labelled]))))
    np.testing.assert_allclose(found["a_loss"], tf.reduce_mean(values), rtol=2e-5)


def test_trying_out_leaves_variables_and_global_random_numbers_alone():
    calls = tf.Variable(0, trainable=False)

    def counted(y, p):
        calls.assign_add(1)
        return (y - p) ** 2

    trainer = trainer_of(counted, keras.layers.Dense(1), {"run_eagerly": False})
    x = np.ones((8, 5), "float32")
    before = np.random.get_state()[1].copy()
    trainer.compute_gradients((x, {"a": np.ones((8, 1), "float32")}))
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    assert int(calls) == 1
