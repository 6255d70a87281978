"""A head is dropped: what is trained stays as it is."""

from __future__ import annotations

import keras
import numpy as np
import pytest

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
