"""A head is dropped, or added to a trained trainer: what is trained stays as it is."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")


def test_without_a_dropped_head_updates_are_those_of_the_others():
    batch = tiny.data(12)
    trainer, twin = tiny.trainer("adam", run_eagerly=False), tiny.trainer(heads=("tag", "size"))
    trainer.fit(*batch, epochs=2, verbose=0)
    trainer.predict(batch[0], verbose=0)
    module = trainer.heads["price"].module
    before, dropped = tiny.values(trainer.encoder.variables), tiny.values(module.variables)
    trainer.remove_head("price")
    assert list(trainer.heads) == list(trainer.predict(batch[0], verbose=0)) == ["tag", "size"]
    with pytest.raises(
        ValueError, match=r"`fit` requires a compiled trainer\..*`add_head` or `remove_head`\. Call `compile"
    ):
        trainer.fit(*tiny.only(batch, "tag", "size"))
    np.testing.assert_array_equal(before[0], tiny.values(trainer.encoder.variables)[0])

    trainer.compile(keras.optimizers.SGD(0.1), run_eagerly=False)  # traced again, without the head
    twin.compile(keras.optimizers.SGD(0.1))
    twin.compute_gradients(tiny.only(batch, "tag", "size"))
    for mine, its in (
        (twin.encoder, trainer.encoder),
        *((twin.heads[k].module, trainer.heads[k].module) for k in twin.heads),
    ):
        mine.set_weights(its.get_weights())
    for one in (trainer, twin):
        one.fit(*tiny.only(batch, "tag", "size"), batch_size=12, verbose=0)
    for mine, its in zip(tiny.weights_of(twin), tiny.weights_of(trainer), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(dropped, tiny.values(module.variables), strict=True))
    with pytest.raises(ValueError, match=r"'price' is not a head.*the heads are 'tag', 'size'"):
        trainer.evaluate(*batch, verbose=0)


def test_a_dropped_head_is_out_of_weights_and_files(tmp_path):
    batch = tiny.data(8)
    trainer = tiny.trainer("adam")
    trainer.fit(*batch, verbose=0)
    module = trainer.heads["price"].module
    trainer.remove_head("price")
    trainer.compile("adam")
    trainer.fit(*tiny.only(batch, "tag", "size"), verbose=0)
    held = {id(tiny.tensor_variable(variable)) for variable in trainer.variables}
    assert not held & {id(tiny.tensor_variable(variable)) for variable in module.variables}
    assert all(id(tiny.tensor_variable(variable)) in held for variable in trainer.heads["tag"].module.variables)
    assert "price" not in trainer.get_build_config()["specs"]["tuple"][1]["dict"]
    trainer.save_weights(str(tmp_path / "x.weights.h5"))
    twin = tiny.trainer("adam", heads=("tag", "size"))
    twin.fit(*tiny.only(batch, "tag", "size"), verbose=0)
    twin.load_weights(str(tmp_path / "x.weights.h5"))
    for mine, its in zip(tiny.weights_of(twin), tiny.weights_of(trainer), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_the_last_head_may_go_and_its_name_come_back():
    batch = tiny.data(8)
    trainer = tiny.trainer(heads=("price",))
    trainer.fit(*tiny.only(batch, "price"), verbose=0)
    trainer.remove_head("price")
    assert trainer.heads == {}
    with pytest.raises(ValueError, match=r"`compile` needs at least one head"):
        trainer.compile("sgd")
    trainer.add_head("price", tiny.On("mean", 1), "mse")
    trainer.compile("sgd")
    history = trainer.fit(batch[0], batch[1]["size"], verbose=0).history
    assert np.isfinite(history["price_loss"][0])
    with pytest.raises(ValueError, match=r"`name` must be one of 'price'\. Received: name='prise'\. Did you mean 'price'\?"):
        trainer.remove_head("prise")


LATE = [
    {},
    {"balancer": "UPGrad", "balance_at": "parameters", "run_eagerly": False},
    {"balancer": "UPGrad", "micro_batches": 2, "gradient_accumulation_steps": 2},
]


def trained_then_added(optimizer, freeze=lambda encoder: None, **compiled):
    """A trained trainer of two heads that got a third; what it had before; and data for all."""
    inputs, targets = tiny.data(12)
    trainer = tiny.trainer("adam", heads=("tag", "price"))
    for _ in range(2):
        trainer.apply_gradients(trainer.compute_gradients(tiny.only((inputs, targets), "tag", "price")))
    before = tiny.weights_of(trainer)
    freeze(trainer.encoder)
    trainer.add_head("size", tiny.On("mean", 1), "mse")
    trainer.compile(optimizer, **compiled)
    return trainer, before, (inputs, targets)


def test_a_late_head_leaves_every_trained_weight():
    trainer, before, batch = trained_then_added("adam")
    trainer.compute_gradients(batch)
    after = tiny.weights_of(trainer)
    assert len(after) == len(before) + 2
    for old, new in zip(before, after):
        np.testing.assert_array_equal(old, new)
    trainer.fit(*batch, verbose=0)
    assert not any(np.array_equal(old, new) for old, new in zip(before, tiny.weights_of(trainer)))


def all_weights(trainer):
    """The weights of the encoder and of the heads in order, frozen or not."""
    return tiny.values(v for part in (trainer.encoder, *(h.module for h in trainer.heads.values())) for v in part.variables)


def freeze_all(encoder):
    encoder.trainable = False


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("compiled", LATE, ids=str)
def test_on_a_frozen_encoder_a_late_head_learns_by_its_own_gradient(compiled):
    """It moves as by a tape over its loss alone; the encoder, and heads without labels, stay bit for bit."""
    trainer, before, (inputs, targets) = trained_then_added(keras.optimizers.SGD(0.1), freeze_all, **compiled)
    targets |= {"tag": np.zeros_like(targets["tag"]), "price": np.full_like(targets["price"], -1)}
    trained = [variable for _, variable in trainer.compute_gradients([(inputs, targets)])]
    module = trainer.heads["size"].module
    variables = [tiny.tensor_variable(variable) for variable in module.trainable_variables]
    labelled = ~np.isnan(targets["size"])
    with tf.GradientTape() as tape:
        errors = module(trainer.encoder(inputs))[:, 0] - tf.constant(np.nan_to_num(targets["size"]))
        loss = tf.reduce_sum(tf.boolean_mask(errors**2, labelled)) / labelled.sum()
    wanted = [variable - 0.1 * gradient for variable, gradient in zip(variables, tape.gradient(loss, variables))]
    batch_size = len(inputs) // compiled.get("gradient_accumulation_steps", 1)
    trainer.fit(inputs, targets, batch_size=batch_size, shuffle=False, verbose=0)
    for got, expected_value in zip(variables, wanted):
        np.testing.assert_allclose(got, expected_value, rtol=1e-5, atol=1e-7)
    for old, new in zip(before, all_weights(trainer)):
        np.testing.assert_array_equal(old, new)
    assert len(trained) == 6 and int(trainer.update_count) == 3


def test_one_frozen_layer_stays_and_the_rest_learns():
    def freeze(encoder):
        encoder.embed.trainable = False

    trainer, before, batch = trained_then_added("adam", freeze, balancer="UPGrad")
    trainer.fit(*batch, verbose=0)
    (embedding,), (kernel, bias) = (tiny.values(layer.variables) for layer in (trainer.encoder.embed, trainer.encoder.dense))
    np.testing.assert_array_equal(embedding, before[0])
    assert not np.array_equal(kernel, before[1]) and not np.array_equal(bias, before[2])
    late = trainer.heads["size"].module
    trained = [variable for _, variable in trainer.compute_gradients(batch)]
    assert len(trained) == 2 + 6 and any(variable is late.trainable_variables[0] for variable in trained)
