"""The trainer as a Keras model: twins of Keras's own `fit`, balancing where heads meet, steps by hand, errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping, losses, schedules
from tests import reference, tiny


def fit_once(trainer, inputs, targets, **options):
    return trainer.fit(inputs, targets, batch_size=len(inputs), shuffle=False, verbose=0, **options)


# ------------------------------------------------------------------------------------------------ twins


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_one_head_and_nothing_else_is_keras_fit(optimizer):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)).astype("float32"), rng.integers(0, 3, 50)

    def layers():
        keras.utils.set_random_seed(2)
        return keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"), keras.layers.Dense(3, activation="softmax")

    encoder, head = layers()
    plain = keras.Sequential([encoder, head])
    plain.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    wanted = plain.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history
    encoder_2, head_2 = layers()
    trainer = MultiHeadTrainer(encoder_2)
    trainer.add_head("price", head_2, "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer.compile(optimizer)
    history = trainer.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history
    for a, b in zip(tiny.values(plain.trainable_variables), tiny.weights_of(trainer), strict=True):
        np.testing.assert_allclose(b, a, atol=2e-7)
    np.testing.assert_allclose(history["price_accuracy"], wanted["accuracy"], atol=1e-6)


def test_masks_of_predictions_count_as_in_keras():
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, (12, 5))
    x[np.arange(5) >= rng.integers(1, 6, (12, 1))] = 0
    y = rng.integers(0, 3, (12, 5))

    def layers():
        keras.utils.set_random_seed(2)
        embed = keras.layers.Embedding(9, 4, mask_zero=True)
        return keras.Sequential([embed, keras.layers.GRU(3, return_sequences=True)]), keras.layers.Dense(
            3, activation="softmax"
        )

    encoder, head = layers()
    plain = keras.Sequential([encoder, head])
    plain.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    plain.fit(x, y, batch_size=12, verbose=0, shuffle=False)
    for slices in (1, 4):
        encoder_2, head_2 = layers()
        trainer = MultiHeadTrainer(encoder_2)
        trainer.add_head("tag", head_2, "sparse_categorical_crossentropy")
        trainer.compile(keras.optimizers.SGD(0.5), micro_batches=slices)
        fit_once(trainer, x, {"tag": y})
        # A tape over the promised formula; Keras 3 divides by all positions, so its own fit is another sum there.
        encoder_3, head_3 = layers()
        with tf.GradientTape() as tape:
            probabilities = head_3(encoder_3(tf.constant(x)))
            values = keras.losses.sparse_categorical_crossentropy(tf.constant(y), probabilities)
            mask = tf.cast(x > 0, tf.float32)
            loss = tf.reduce_sum(values * mask) / tf.reduce_sum(mask)
        variables = [*encoder_3.trainable_variables, *head_3.trainable_variables]
        gradients = tape.gradient(loss, [tiny.tensor_variable(v) for v in variables])
        wanted = [v - 0.5 * tf.convert_to_tensor(g).numpy() for v, g in zip(tiny.values(variables), gradients)]
        for a, b in zip(wanted, tiny.weights_of(trainer), strict=True):
            np.testing.assert_allclose(b, a, atol=2e-7)


# ------------------------------------------------------------------------------------------------ balancing

METHODS = ["Sum", "EqualNorms", "UPGrad", "MGDA", "NashMTL", "IMTLG", "PCGrad"]


@pytest.mark.parametrize("level", ["representation", "parameters"])
@pytest.mark.parametrize("method", METHODS)
def test_balancer_in_the_step_is_its_definition_in_float64(method, level):
    batch = tiny.data(9, seed=5)
    trainer = tiny.trainer("sgd", balancer=method, balance_at=level, run_eagerly=True)
    actual = {id(tiny.tensor_variable(v)): g for g, v in trainer.compute_gradients(batch)}
    heads = {name: head.module for name, head in trainer.heads.items()}

    def by_hand(combine):
        made = reference.Reference(trainer.encoder, heads, None, tiny.WEIGHTS, combine, level)
        return made.gradients([batch])[0], made.variables

    if method == "PCGrad":
        count = len(reference.coefficients(method, np.eye(3)))
        wanted = [by_hand(lambda gramian, i=i: reference.coefficients(method, gramian)[i]) for i in range(count)]
    else:
        wanted = [by_hand(lambda gramian: reference.coefficients(method, gramian))]
    errors = []
    for gradients, variables in wanted:
        pairs = [(actual[id(tiny.tensor_variable(v))], g) for g, v in zip(gradients, variables)]
        scale = max(np.abs(g).max() for _, g in pairs)
        errors.append(max(np.abs(tf.convert_to_tensor(a) - g).max() for a, g in pairs) / scale)
    assert min(errors) < 2e-6


def test_norm_budget_holds_in_the_logs():
    batch = tiny.data(16)
    trainer = tiny.trainer("adam", balancer=balancing.NormBudget({"size": 0.2}))
    free = tiny.trainer("adam")
    assert fit_once(free, *batch).history["size_share"][0] > 0.3
    history = fit_once(trainer, *batch, epochs=3).history
    assert max(history["size_share"]) <= 0.2 + 1e-5
    shares = [sum(history[f"{name}_share"][i] for name in trainer.heads) for i in range(3)]
    np.testing.assert_allclose(shares, 1, atol=1e-5)


@pytest.mark.parametrize("method", [name for name in balancing.__all__ if name[0].isupper()])
def test_every_balancer_trains_or_says_why_not(method):
    made = getattr(balancing, method)
    if not (isinstance(made, type) and issubclass(made, balancing.Balancer)) or made is balancing.Balancer:
        pytest.skip("no method")
    try:
        balancer = made()
    except TypeError:
        balancer = made(balancing.EqualNorms(), balancing.UPGrad())
    level = balancer.levels[-1]
    trainer = tiny.trainer("sgd", balancer=balancer, balance_at=level)
    history = fit_once(trainer, *tiny.data(8), epochs=2).history
    assert history["skipped_updates"][-1] == 0 and np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("slices", [1, 4])
def test_sdmgrad_takes_the_slices_for_halves(slices):
    inputs, targets = tiny.data(12)
    trainer = tiny.trainer("sgd", balancer=balancing.SDMGrad(), balance_at="parameters", micro_batches=slices)
    trainer.compute_gradients((inputs, targets))  # builds
    trainer.balancer.reset()
    modules = {name: head.module for name, head in trainer.heads.items()}

    def rows(examples, only=None):
        """Each head's gradient of its mean loss on some of the examples, as rows."""
        batch = tf.nest.map_structure(lambda array: array[examples], (inputs, targets))
        variables = [tiny.tensor_variable(v) for v in trainer.encoder.trainable_variables]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(variables)
            representation = trainer.encoder(batch[0])
            predictions = {name: module(representation) for name, module in modules.items()}
            losses = {
                name: tiny.WEIGHTS[name] * tf.reduce_sum(tf.where(mask, values, 0.0)) / mask.sum()
                for name, (values, mask) in reference.element_losses(predictions, batch).items()
            }
        gradients = [tape.gradient(loss, variables, unconnected_gradients="zero") for loss in losses.values()]
        return np.array([np.concatenate([np.ravel(tf.convert_to_tensor(g)) for g in each]) for each in gradients])

    step = 12 // max(slices, 2)
    odd = np.arange(12) // step % 2 == 1
    whole, one, other = rows(np.arange(12)), rows(np.flatnonzero(~odd)), rows(np.flatnonzero(odd))
    between = one @ other.T
    by_hand = balancing.SDMGrad()
    expected = by_hand(whole.astype("float64"), halves=(between + between.T) / 2)
    pairs = trainer.compute_gradients((inputs, targets))
    count = len(trainer.encoder.trainable_variables)
    actual = np.concatenate([np.ravel(tf.convert_to_tensor(gradient)) for gradient, _ in pairs[:count]])
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())
    assert not np.allclose(by_hand(whole.astype("float64")), expected, atol=1e-3 * np.abs(expected).max())


class CountingEncoder(keras.layers.Layer):
    """Counts how often a gradient passes back through it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.passes = [tf.Variable(0, trainable=False, dtype=tf.int32)]

    def call(self, x):
        counter = self.passes[0]

        @tf.custom_gradient
        def counted(y):
            def backward(upstream):
                with tf.control_dependencies([counter.assign_add(1)]):
                    return tf.identity(upstream)

            return tf.identity(y), backward

        return counted(self.dense(x))


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 1),
        ({"balancer": "UPGrad"}, 1),
        ({"balancer": "EqualNorms", "clip": clipping.ByGlobalNorm(1.0)}, 1),
        ({"micro_batches": 3}, 3),
        ({"balancer": "UPGrad", "balance_at": "parameters"}, 4),
    ],
)
def test_number_of_backward_passes_through_the_encoder(options, passes):
    encoder = CountingEncoder()
    trainer = MultiHeadTrainer(encoder)
    for k in range(4):
        trainer.add_head(f"head_{k}", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", **options)
    x = np.ones((6, 3), "float32")
    fit_once(trainer, x, {name: np.ones((6, 1), "float32") for name in trainer.heads})
    assert int(encoder.passes[0]) == passes


# ------------------------------------------------------------------------------------------------ steps by hand


def test_the_two_halves_by_hand_are_a_step():
    batch = tiny.data(8)
    options = {"balancer": "UPGrad", "clip": clipping.ByNorm(0.1)}
    stepped = tiny.trainer("adam", **options)
    fit_once(stepped, *batch)
    by_hand = tiny.trainer("adam", **options)
    pairs = by_hand.compute_gradients(batch)
    assert bool(by_hand.apply_gradients(pairs))
    for a, b in zip(tiny.weights_of(stepped), tiny.weights_of(by_hand), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert tiny.values([by_hand.update_count]) == [1]


def test_an_absent_key_is_a_head_without_labels():
    inputs, targets = tiny.data(8)
    trainer = tiny.trainer("adam", run_eagerly=True)
    pairs = trainer.compute_gradients((inputs, {"price": targets["price"]}))
    price = {id(tiny.tensor_variable(v)) for v in trainer.heads["price"].module.trainable_variables}
    encoder = {id(tiny.tensor_variable(v)) for v in trainer.encoder.trainable_variables}
    for gradient, variable in pairs:
        assert (gradient is not None) == (id(tiny.tensor_variable(variable)) in price | encoder)


def test_sample_weights_and_missing_labels_follow_the_formula():
    batches = [tiny.data(9, seed=2)]
    rng = np.random.default_rng(1)
    weights = [{"price": rng.integers(0, 3, 9).astype("float32"), "tag": rng.random((9, 6)).astype("float32")}]
    trainer = tiny.trainer("sgd", run_eagerly=True)
    actual = {id(tiny.tensor_variable(v)): g for g, v in trainer.compute_gradients((*batches[0], weights[0]))}
    heads = {name: head.module for name, head in trainer.heads.items()}
    made = reference.Reference(trainer.encoder, heads, None, tiny.WEIGHTS)
    for gradient, variable in zip(made.gradients(batches, weights)[0], made.variables):
        got = tf.convert_to_tensor(actual[id(tiny.tensor_variable(variable))])
        np.testing.assert_allclose(got, gradient, atol=1e-6)


def test_weights_may_be_functions_of_the_update_count():
    inputs, targets = tiny.data(8, missing=False)
    seen = []
    trainer = tiny.trainer("sgd", weights={"tag": lambda u: 1.0 / (1.0 + tf.cast(u, tf.float32)), "price": 1.0, "size": 1.0})
    history = fit_once(trainer, inputs, targets, epochs=2).history
    for epoch, weight in enumerate((1.0, 0.5)):
        total = weight * history["tag_loss"][epoch] + history["price_loss"][epoch] + history["size_loss"][epoch]
        seen.append(total)
    np.testing.assert_allclose(history["loss"], seen, rtol=1e-5)


def test_heads_with_shared_variables_and_nested_representations():
    """A decoder that reuses the encoder's embedding: the direct path and the path through the cut add up."""
    keras.utils.set_random_seed(0)
    embed = keras.layers.Embedding(7, 4)

    class Encoder(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embed = embed

        def call(self, tokens):
            vectors = self.embed(tokens)
            return [(vectors, tf.shape(tokens)[1]), {"deep": {"mean": tf.reduce_mean(vectors, axis=1)}}]

    class Tied(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embed = embed

        def call(self, representation):
            (vectors, _), rest = representation
            return tf.matmul(
                vectors + rest["deep"]["mean"][:, None], tiny.tensor_variable(self.embed.embeddings), transpose_b=True
            )

    encoder, head = Encoder(), Tied()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("copy", head, losses.SequenceCrossentropy())
    trainer.compile("sgd")
    tokens = np.random.default_rng(0).integers(1, 7, (5, 3))
    ((gradient, variable),) = trainer.compute_gradients((tokens, {"copy": tokens}))
    with tf.GradientTape() as tape:
        logits = head(encoder(tf.constant(tokens)))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens, logits=logits))
    wanted = tape.gradient(loss, tiny.tensor_variable(embed.embeddings))
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), tf.convert_to_tensor(wanted), atol=1e-6)


def test_added_losses_count_once_however_the_batch_is_cut():
    x = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
    y = {"a": x.sum(1, keepdims=True), "b": x[:, :1]}

    def made(**options):
        keras.utils.set_random_seed(1)
        trainer = MultiHeadTrainer(keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.5)))
        trainer.add_head("a", keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.3)), "mse")
        trainer.add_head("b", keras.layers.Dense(1), "mse")
        trainer.compile(keras.optimizers.SGD(0.1), **options)
        return trainer

    whole = made()
    encoder, heads = whole.encoder, [head.module for head in whole.heads.values()]
    pairs = whole.compute_gradients((x, y))
    with tf.GradientTape() as tape:
        hidden = encoder(x)
        loss = sum(tf.reduce_mean((head(hidden) - target) ** 2) for head, target in zip(heads, y.values()))
        loss += 0.5 * tf.reduce_sum(tf.square(tiny.tensor_variable(encoder.kernel)))
        loss += 0.3 * tf.reduce_sum(tf.square(tiny.tensor_variable(heads[0].kernel)))
    wanted = tape.gradient(loss, [tiny.tensor_variable(v) for _, v in pairs])
    for (actual, _), expected in zip(pairs, wanted, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    for options in (
        {"micro_batches": 3},
        {"micro_batches": 3, "balancer": "Sum"},
        {"balancer": "Sum", "balance_at": "parameters"},
    ):
        for (actual, _), expected in zip(made(**options).compute_gradients((x, y)), wanted, strict=True):
            np.testing.assert_allclose(tf.convert_to_tensor(actual), expected, atol=1e-5)


# ------------------------------------------------------------------------------------------------ Keras's own loop


class Echo(keras.layers.Layer):
    """A decoder that reads its targets in training."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(tiny.VOCABULARY)

    def call(self, representation, targets, training=None):
        assert training is not None
        return self.dense(representation["outputs"]) + tf.one_hot(targets, tiny.VOCABULARY)

    def generate(self, representation):
        return tf.argmax(self.dense(representation["outputs"]), axis=-1)


def test_teacher_forcing_trains_on_targets_and_predicts_by_generating():
    inputs, targets = tiny.data(8, missing=False)
    encoder, heads = tiny.modules()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("echo", Echo(), losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.add_head("price", heads["price"], "sparse_categorical_crossentropy", ignore_label=-1)
    trainer.compile("adam")
    fit_once(trainer, inputs, {"echo": targets["tag"], "price": targets["price"]})
    predictions = trainer.predict(inputs, verbose=0, batch_size=3)
    assert predictions["echo"].shape == (8, 6) and predictions["price"].shape == (8, 3)


def test_evaluation_is_exact_over_ragged_batches_and_missing_heads():
    inputs, targets = tiny.data(13)
    trainer = tiny.trainer("adam", metrics=True)
    fit_once(trainer, inputs, targets)
    whole = trainer.evaluate(inputs, targets, batch_size=13, verbose=0, return_dict=True)
    parts = trainer.evaluate(inputs, targets, batch_size=4, verbose=0, return_dict=True)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5, err_msg=name)
    predictions = trainer.predict(inputs, verbose=0)["price"]
    labelled = targets["price"] >= 0
    np.testing.assert_allclose(
        whole["price_accuracy"], np.mean(predictions.argmax(1)[labelled] == targets["price"][labelled]), rtol=1e-6
    )
    only = trainer.evaluate(inputs, {"price": targets["price"]}, verbose=0, return_dict=True)
    assert set(only) == {"loss", "price_loss", "price_accuracy"}
    np.testing.assert_allclose(only["loss"], tiny.WEIGHTS["price"] * only["price_loss"], rtol=1e-5)


def test_callbacks_and_a_resumed_run(tmp_path):
    inputs, targets = tiny.data(12)
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(4)
    options = {"schedule": schedules.Sample({"tag": 1, "price": 1, "size": 1}, seed=3), "balancer": "EqualNorms"}

    def made():
        return tiny.trainer(keras.optimizers.Adam(0.05), **options)

    keras_callbacks = [
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.EarlyStopping("val_price_loss", mode="min", patience=9),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True),
    ]
    try:
        import tensorboard  # noqa: F401

        keras_callbacks.append(keras.callbacks.TensorBoard(str(tmp_path / "board")))
    except ImportError:
        pass
    through = made()
    through.fit(data, validation_data=data, epochs=4, verbose=0, shuffle=False, callbacks=keras_callbacks)
    assert "price_share" in (tmp_path / "log.csv").read_text().splitlines()[0]
    first = made()
    first.fit(data, epochs=2, verbose=0, shuffle=False)
    first.save_weights(str(tmp_path / "half.weights.h5"))
    resumed = made()
    resumed.compute_gradients((inputs[:4], {k: v[:4] for k, v in targets.items()}))  # creates the variables
    resumed.load_weights(str(tmp_path / "half.weights.h5"))
    assert tiny.values([resumed.update_count]) == [6]
    resumed.fit(data, epochs=2, verbose=0, shuffle=False)
    for a, b in zip(tiny.weights_of(through), tiny.weights_of(resumed), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_whole_trainer_is_saved_and_goes_on(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    y = {"a": x.sum(1, keepdims=True), "b": (x[:, 0] > 0).astype("int64")}

    def fitted():
        keras.utils.set_random_seed(1)
        trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
        trainer.add_head("a", keras.layers.Dense(1), "mse", weight=0.5)
        trainer.add_head(
            "b", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        trainer.compile(
            keras.optimizers.Adam(0.05),
            balancer=balancing.NormBudget({"a": 0.3}),
            schedule=schedules.Alternate({"a": 1, "b": 2}),
            clip=clipping.ByGlobalNorm(1.0),
            micro_batches=2,
        )
        fit_once(trainer, x, y, epochs=2)
        return trainer

    trainer = fitted()
    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    assert tiny.values([loaded.update_count]) == [2]
    for a, b in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_array_equal(a, b)
    fit_once(trainer, x, y, epochs=2)
    fit_once(loaded, x, y, epochs=2)
    for a, b in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_kept_coefficients_serve_several_updates():
    inputs, targets = tiny.data(8)
    trainer = tiny.trainer("sgd", balancer="EqualNorms", balance_every=3)
    coefficients = []
    for _ in range(4):
        history = fit_once(trainer, inputs, targets).history
        coefficients.append([history[f"{name}_coefficient"][0] for name in trainer.heads])
    np.testing.assert_array_equal(coefficients[0], coefficients[1])
    np.testing.assert_array_equal(coefficients[0], coefficients[2])
    assert np.abs(np.subtract(coefficients[3], coefficients[0])).max() > 1e-4


def test_updates_are_what_keras_counts(tmp_path):
    """Seven batches in windows of three are three updates, whatever `steps_per_execution` is."""
    inputs, targets = tiny.data(14)
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(2)
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.0])
    weights = []
    for steps in (1, 2):
        trainer = tiny.trainer(keras.optimizers.SGD(rates), accumulate_steps=3, steps_per_execution=steps)
        ends = []
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))  # noqa: B023
        history = trainer.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[count])
        assert len(ends) == {1: 3, 2: 2}[steps]
        assert history.history["tag_updates"] == [3.0]
        assert tiny.values([trainer.optimizer.iterations, trainer.update_count]) == [3, 3]
        weights.append(tiny.weights_of(trainer))
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
    endless = tiny.trainer(keras.optimizers.SGD(rates), accumulate_steps=3)
    endless.fit(data.repeat(), steps_per_epoch=4, epochs=2, verbose=0, shuffle=False)
    assert tiny.values([endless.update_count]) == [8]
    arrays = tiny.trainer("sgd", accumulate_steps=3)
    assert arrays.fit(inputs, targets, batch_size=2, verbose=0).history["tag_updates"] == [3.0]


@pytest.mark.parametrize("options", [{"micro_batches": 3}, {"accumulate_steps": 2}, {"micro_batches": 9}])
def test_batch_normalization_and_dropout_work_in_slices(options):
    encoder = keras.Sequential(
        [keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5)]
    )
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.Sequential([keras.layers.Dropout(0.2), keras.layers.Dense(1)]), "mse")
    trainer.add_head("b", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", balancer="UPGrad", **options)
    x = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
    y = {"a": x[:, :1], "b": x[:, 1:2]}
    trainer.fit(x, y, batch_size=5, verbose=0, shuffle=False)
    for value in tiny.values(trainer.encoder.weights):
        assert np.isfinite(value).all()  # slices without examples are left out
    moved = tiny.values(encoder.layers[1].non_trainable_variables)
    assert np.abs(moved[0]).max() > 0


# ------------------------------------------------------------------------------------------------ errors


def empty_trainer():
    return MultiHeadTrainer(keras.layers.Dense(2))


def add(trainer, name="a", **options):
    trainer.add_head(name, keras.layers.Dense(1), options.pop("loss", "mse"), **options)
    return trainer


ERRORS = {
    "no head": (lambda: empty_trainer().compile("sgd"), r"`compile` needs at least one head.*add_head"),
    "twice": (lambda: add(add(empty_trainer())), r"`name` must be new. Received: name='a'; the heads are 'a'"),
    "encoder": (lambda: MultiHeadTrainer(3), r"`encoder` must be a Keras layer or model. Received: encoder=3"),
    "weight": (lambda: add(empty_trainer(), weight=-1), r"`weight` must be a finite number of at least 0.*weight=-1"),
    "loss": (lambda: add(empty_trainer(), loss="mze"), r"`loss` must be a Keras loss. Received: loss='mze'"),
    "reduction": (
        lambda: add(empty_trainer(), loss=keras.losses.MeanSquaredError(reduction="sum")),
        r"`loss` must leave its reduction to the trainer.*reduction='sum'.*weight=",
    ),
    "metrics": (lambda: add(empty_trainer(), metrics="mae"), r"`metrics` must be a list"),
    "balancer": (lambda: add(empty_trainer()).compile("sgd", balancer="UBGrad"), r"UPGrad"),
    "level": (lambda: add(empty_trainer()).compile("sgd", balance_at="parameter"), r"Did you mean 'parameters'\?"),
    "slices": (lambda: add(empty_trainer()).compile("sgd", micro_batches=0), r"`micro_batches` must be a whole number"),
    "steps": (lambda: add(empty_trainer()).compile("sgd", accumulate_steps=1.5), r"`accumulate_steps` must be a whole"),
    "clip": (
        lambda: add(empty_trainer()).compile("sgd", clip=5.0),
        r"`clip` must be one of multihead.clipping.*clip=5.0",
    ),
    "limit": (lambda: clipping.ByNorm(0), r"`limit` must be a finite number above 0. Received: limit=0"),
    "own clip": (
        lambda: add(empty_trainer()).compile(keras.optimizers.SGD(0.1, global_clipnorm=2.0)),
        r"`optimizer` must leave clipping.*global_clipnorm=2.0.*clip=clipping.ByGlobalNorm\(2.0\)",
    ),
    "optimizer": (lambda: add(empty_trainer()).compile("adamm"), r"`optimizer` must be a Keras optimizer or its name"),
    "schedule": (
        lambda: add(empty_trainer()).compile("sgd", schedule=schedules.Alternate({"b": 1})),
        r"`turns` must name every head, and only heads: 'b' is no head; the head 'a' is not named",
    ),
    "turns": (lambda: schedules.Alternate({"a": 0}), r"`turns\['a'\]` must be a whole number of at least 1"),
    "uncompiled": (
        lambda: add(empty_trainer()).fit(np.ones((2, 2)), np.ones((2, 1))),
        r"`fit` needs a compiled trainer",
    ),
    "budget": (
        lambda: add(empty_trainer()).compile("sgd", balancer=balancing.NormBudget({"b": 0.5})),
        r"'b'.*'a'",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_argument_rule_and_what_was_received(case):
    action, message = ERRORS[case]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        action()


def ready():
    trainer = add(add(empty_trainer()), "b")
    trainer.compile("sgd")
    return trainer


ONES = np.ones((4, 2), "float32")
DATA_ERRORS = {
    "unknown": ({"a": ONES, "c": ONES}, r"`targets` must name heads only: 'c' is no head.*the heads are 'a', 'b'"),
    "absent": ({"a": ONES}, r"head 'b' has none in the data.*targets for 'a'; the heads are 'a', 'b'"),
    "no dict": (ONES, r"`targets` must be a dict by head name"),
}


@pytest.mark.parametrize("case", DATA_ERRORS)
def test_errors_about_data_come_before_training(case):
    targets, message = DATA_ERRORS[case]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        ready().fit(ONES, targets, verbose=0)


def test_a_head_that_does_not_use_the_representation_is_an_error():
    trainer = empty_trainer()
    dense = keras.layers.Dense(1)
    trainer.add_head("a", lambda representation: dense(tf.ones_like(representation)), "mse")
    trainer.compile("sgd")
    with pytest.raises(ValueError, match="Head 'a' must depend on the representation"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1]}))


def test_a_representation_without_floats_and_a_loss_that_reduces_are_errors():
    trainer = MultiHeadTrainer(lambda x: tf.cast(x, tf.int32))
    add(trainer).compile("sgd")
    with pytest.raises(ValueError, match="The encoder must return at least one floating tensor"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1]}))
    trainer = empty_trainer()
    trainer.add_head("a", keras.layers.Dense(1), lambda t, p: tf.reduce_mean((t - p) ** 2))
    trainer.compile("sgd")
    with pytest.raises(ValueError, match="must give one value per element.*Do not reduce"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1]}))


def test_negative_sample_weights_are_an_error():
    trainer = ready()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"sample_weights\['a'\]` must be at least 0"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1], "b": ONES[:, :1]}, {"a": -ONES[:, 0]}))


class Twice(keras.layers.Layer):
    """Gives one tensor under two names."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2, use_bias=False)

    def call(self, x):
        y = self.dense(x)
        return {"first": y, "second": (y,)}


class Read(keras.layers.Layer):
    def __init__(self, name):
        super().__init__()
        self.entry = name
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, representation):
        value = representation[self.entry]
        return self.dense(value[0] if isinstance(value, tuple) else value)


def test_heads_that_read_one_tensor_by_two_names_meet_there():
    trainer = MultiHeadTrainer(Twice())
    trainer.add_head("up", Read("first"), "mse")
    trainer.add_head("down", Read("second"), "mse")
    trainer.compile("sgd")
    inputs = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    report = trainer.diagnose([(inputs, {"up": np.full([8, 1], 9.0, "float32"), "down": np.full([8, 1], -9.0, "float32")})])
    assert report.cosines["representation"][0, 1] < -0.5  # as two leaves they would be orthogonal
