"""What every balancer keeps to, over every method that the package offers, and over inputs from harmless to hard."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing
from tests.helpers import zoo

METHODS = sorted(
    name for name in balancing.__all__ if isinstance(getattr(balancing, name), type) and name not in ("Balancer", "Chain")
)
CHAINS = {"Chain": lambda: balancing.Chain(balancing.EqualNorms(), balancing.UPGrad())}
ALL = [*METHODS, *CHAINS]

# Methods whose update depends on the order of the heads, because they go through them in random orders, or draw.
ORDERED = ("PCGrad", "GradVac", "MetaBalance")

# Methods whose update scales with the gradients; the others have a size of their own.
HOMOGENEOUS = tuple(name for name in ALL if name not in ("NashMTL", "FairGrad", "MoCo"))

# Methods whose weights are found by unequal steps, so that float32 input is as near to float64 as that step allows.
PROMISE_NO_CONFLICT = ("UPGrad", "DualProj", "MGDA", "NashMTL", "FairGrad", "Chain")


def make(name):
    return CHAINS[name]() if name in CHAINS else getattr(balancing, name)()


def update_of(name, rows, dtype=np.float64, **used):
    return make(name)(rows.astype(dtype), **used).numpy()


def xla_heads(name):
    """The number of heads at which XLA compiles a method here: for many it takes long, for CAGrad a minute at three."""
    return 2 if name in ("CAGrad", "MoCo", "SDMGrad") else 3


@pytest.fixture(scope="module")
def compiled():
    """One update per method and number of heads, compiled at `xla_heads` of them, with a fresh state at each call."""
    made = {}

    def get(name, num_heads, size=31):
        key = name, num_heads, size
        if key not in made:
            balancer = make(name)
            balancer.build((num_heads, size))
            initial = [tf.identity(variable) for variable in map(_value, balancer.variables)]

            @tf.function(jit_compile=num_heads == xla_heads(name))
            def update(matrix):
                for variable, value in zip(balancer.variables, initial):
                    variable.assign(value)
                return balancer.combine([matrix])[0]

            made[key] = update
        return made[key]

    return get


def _value(variable):
    return getattr(variable, "value", variable) if not callable(getattr(variable, "value", None)) else variable


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("num_heads", [3, 16])
def test_finite_with_the_right_shape_and_dtype(name, num_heads, compiled):
    for kind in zoo.KINDS:
        for spread, overall in ((0, 1.0), (6, 1.0), (3, 1e-15), (3, 1e15)):
            rows = zoo.matrix(kind, num_heads, spread, overall)
            update = compiled(name, num_heads)(tf.constant(rows, tf.float32)).numpy()
            assert update.shape == (31,) and update.dtype == np.float32
            assert np.isfinite(update).all(), (kind, spread, overall)
            if kind == "all_zero":
                assert not update.any()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PROMISE_NO_CONFLICT)
@pytest.mark.parametrize("num_heads", [2, 3, 16])
def test_no_head_is_opposed(name, num_heads, compiled):
    for kind in zoo.KINDS:
        for spread, overall in ((0, 1.0), (3, 1.0), (6, 1.0), (6, 1e-15), (6, 1e15)):
            for seed in range(2):
                rows = zoo.matrix(kind, num_heads, spread, overall, seed)
                update = compiled(name, num_heads)(tf.constant(rows, tf.float32)).numpy().astype(np.float64)
                assert zoo.conflict(update, rows) >= -1e-5, (kind, spread, overall, seed)


@pytest.mark.parametrize("name", PROMISE_NO_CONFLICT)
@pytest.mark.parametrize("num_heads", [3])
def test_no_head_is_opposed_by_coefficients_of_a_float32_gramian(name, num_heads):
    balancer = make(name)
    balancer.build((num_heads, None))
    coefficients_of = tf.function(lambda gramian: balancer.coefficients(gramian), jit_compile=name == "UPGrad")
    for kind in zoo.KINDS:
        for spread in (0, 3, 6):
            for seed in range(3):
                rows = zoo.matrix(kind, num_heads, spread, 1.0, seed)
                coefficients = coefficients_of(tf.constant(rows @ rows.T, tf.float32)).numpy()
                assert coefficients.dtype == np.float32
                assert zoo.conflict(coefficients.astype(np.float64) @ rows, rows) >= -1e-5, (kind, spread, seed)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALL)
def test_eager_graph_and_xla_agree(name, compiled):
    num_heads = xla_heads(name)
    rows = zoo.matrix("conflicting", num_heads, 1.0)
    matrix = tf.constant(rows, tf.float32)
    eager = make(name)(matrix).numpy()
    balancer = make(name)
    balancer.build((num_heads, 31))
    graph = tf.function(lambda matrix: balancer(matrix))(matrix).numpy()
    scale = np.abs(eager).max()
    np.testing.assert_allclose(graph, eager, rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(compiled(name, num_heads)(matrix).numpy(), eager, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("name", ALL)
def test_float32_is_close_to_float64_and_kept(name):
    for kind in ("random", "conflicting", "zero_row"):
        rows = zoo.matrix(kind, 3, 1.0)
        narrow, wide = update_of(name, rows, np.float32), update_of(name, rows)
        assert narrow.dtype == np.float32 and wide.dtype == np.float64
        np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-5 * np.abs(wide).max())


@pytest.mark.parametrize("name", [name for name in ALL if name not in ORDERED])
def test_the_order_of_heads_does_not_matter(name):
    for kind in ("random", "conflicting", "opposed_scaled", "rank_deficient"):
        rows = zoo.matrix(kind, 5, 1.0)
        order = np.random.default_rng(1).permutation(5)
        update = update_of(name, rows)
        np.testing.assert_allclose(update_of(name, rows[order]), update, rtol=1e-6, atol=1e-8 * norm_of(rows, update))


def norm_of(rows, update):
    return max(np.abs(rows).max(), np.abs(update).max()) if update.any() else 1.0


@pytest.mark.parametrize("name", ALL)
def test_a_head_without_gradient_changes_nothing_for_the_others(name):
    rows = zoo.matrix("conflicting", 3, 1.0)
    with_idle = np.concatenate([rows, np.zeros((1, 31))])
    np.testing.assert_allclose(update_of(name, with_idle), update_of(name, rows), rtol=1e-6, atol=1e-9)


SIZES_OF_ONE_HEAD = {"NashMTL": "unit", "FairGrad": "own", "CAGrad": 1.4}


@pytest.mark.parametrize("name", ALL)
def test_one_head_is_left_as_it_is_up_to_the_documented_size(name):
    rows = zoo.matrix("random", 1)
    size = SIZES_OF_ONE_HEAD.get(name, 1.0)
    length = np.linalg.norm(rows)
    factor = {"unit": 1 / length, "own": length ** (-4 / 3)}.get(size, size)  # FairGrad: n^2 w = w^(-1/2)
    np.testing.assert_allclose(update_of(name, rows), factor * rows[0], rtol=1e-6)


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_scaling_all_gradients_scales_the_update(name):
    rows = zoo.matrix("conflicting", 3)
    np.testing.assert_allclose(update_of(name, 1e3 * rows), 1e3 * update_of(name, rows), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in ALL if "gradients" not in make(name).uses])
def test_gramian_and_gradients_lead_to_the_same_update(name):
    rows = zoo.matrix("conflicting", 3, 1.0)
    balancer, other, third = make(name), make(name), make(name)
    for each in (balancer, third):
        each.build((3, None))
    coefficients = balancer.coefficients(tf.constant(rows @ rows.T)).numpy()
    update = other(rows).numpy()
    np.testing.assert_allclose(coefficients @ rows, update, rtol=1e-9, atol=1e-9)
    cut = third.combine([tf.constant(rows[:, :7]), tf.constant(rows[:, 7:])])
    np.testing.assert_allclose(np.concatenate([part.numpy() for part in cut]), update, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_config_round_trip(name):
    balancer = make(name)
    config = keras.saving.serialize_keras_object(balancer)
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(balancer) and copy.get_config() == balancer.get_config()
    rows = zoo.matrix("conflicting", 3)
    np.testing.assert_array_equal(copy(rows).numpy(), balancer(rows).numpy())


class _Holder(keras.Model):
    def __init__(self, balancer):
        super().__init__()
        self.balancer = balancer

    def call(self, inputs):
        return inputs


STATEFUL = ("GradVac", "MetaBalance", "DBMTL", "MoCo", "SDMGrad", "ExcessMTL")


def test_the_list_of_methods_with_state_is_complete():
    for name in ALL:
        balancer = make(name)
        balancer.build((3, 31))
        assert bool(balancer.variables) == (name in STATEFUL), name
        assert not balancer.trainable_variables


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", STATEFUL)
def test_state_is_saved_and_restored(name, tmp_path):
    first, second, third = (zoo.matrix("conflicting", 3, seed=seed) for seed in range(3))
    original = make(name)
    original(first), original(second)
    holder, restored = _Holder(original), _Holder(make(name))
    restored.balancer.build((3, 31))
    for each in (holder, restored):
        each(tf.zeros([1, 1]))
    holder.save_weights(tmp_path / "state.weights.h5")
    restored.load_weights(tmp_path / "state.weights.h5")
    continued = restored.balancer(third).numpy()
    np.testing.assert_array_equal(continued, original(third).numpy())
    fresh = make(name)
    assert not np.array_equal(continued, fresh(third).numpy())


@pytest.mark.parametrize("name", STATEFUL)
def test_building_twice_does_nothing(name):
    balancer = make(name)
    balancer.build((3, 31))
    before = list(balancer.variables)
    balancer.build((3, 31))
    assert all(one is other for one, other in zip(before, balancer.variables)) and len(before) == len(balancer.variables)


@pytest.mark.parametrize("name", ALL)
def test_a_non_finite_gradient_spoils_this_update_only(name):
    rows = zoo.matrix("conflicting", 3)
    spoilt = rows.copy()
    spoilt[1, 4] = np.nan
    balancer, untouched = make(name), make(name)
    balancer.build((3, 31))
    update = tf.function(lambda matrix: balancer.combine([matrix])[0])
    assert np.isnan(update(tf.constant(spoilt)).numpy()).any()
    np.testing.assert_allclose(update(tf.constant(rows)).numpy(), untouched(rows).numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_a_non_finite_gradient_is_reported_with_its_head(name):
    rows = zoo.matrix("random", 3)
    rows[2, 0] = np.inf
    balancer = make(name)
    balancer.bind(["reply", "price", "tags"])
    with pytest.raises(ValueError, match="`matrix` must be finite: .* Received: non-finite gradients of head 'tags'"):
        balancer(rows)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", [name for name in balancing.__all__ if name[0].isupper() and name != "Balancer"])
def test_reset_undoes_every_update(method):
    balancer = getattr(balancing, method)()
    rows = zoo.matrix("random", 3)
    first = balancer(rows, update=0, losses=[1.0, 2.0, 3.0]).numpy()
    balancer(3 * rows[::-1].copy(), update=0, losses=[3.0, 1.0, 2.0])
    balancer.reset()
    np.testing.assert_array_equal(balancer(rows, update=0, losses=[1.0, 2.0, 3.0]), first)
