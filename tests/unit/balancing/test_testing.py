"""`check_balancer` passes what is right, and names what is not."""

from __future__ import annotations

import pytest
import tensorflow as tf

from multihead import balancing
from multihead.testing import check_balancer


class Halved(balancing.Balancer):
    """What a user writes: one method."""

    def coefficients(self, gramian):
        return tf.fill([gramian.shape[0]], tf.constant(0.5, gramian.dtype))


class Averaged(balancing.Balancer):
    """Counts idle heads."""

    def coefficients(self, gramian):
        return tf.fill([gramian.shape[0]], tf.cast(1 / int(gramian.shape[0]), gramian.dtype))


class Normalised(balancing.Balancer):
    """Divides by zero."""

    def coefficients(self, gramian):
        return 1 / tf.sqrt(tf.linalg.diag_part(gramian))


class FirstOnly(balancing.Balancer):
    def coefficients(self, gramian):
        return tf.one_hot(0, gramian.shape[0], dtype=gramian.dtype)


class Signs(balancing.Balancer):
    uses = ("gradients",)
    rescales = False

    def combine(self, gradients):
        return [tf.sign(tf.reduce_sum(rows, axis=0)) for rows in gradients]


class Power(Halved):
    """A constructor with one argument, without a name."""

    def __init__(self, exponent):
        super().__init__()
        self.exponent = exponent


class Forgetful(balancing.Balancer):
    def __init__(self, factor=1.0, *, name=None):
        super().__init__(name=name)
        self.factor = factor

    def coefficients(self, gramian):
        return tf.fill([gramian.shape[0]], tf.cast(self.factor, gramian.dtype))

    def get_config(self):
        return {**super().get_config(), "factor": 1.0 if self.factor == 1.0 else self.factor + 1}


class Widening(balancing.Balancer):
    uses = ("gradients",)

    def combine(self, gradients):
        return [tf.cast(tf.reduce_sum(rows, axis=0), tf.float64) for rows in gradients]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("balancer", [Halved(), Power(0.5), Signs(), balancing.UPGrad(), balancing.ExcessMTL()])
def test_what_is_right_passes(balancer):
    check_balancer(balancer, num_heads=(1, 3), xla=False)


@pytest.mark.first_cases(1)
@pytest.mark.mathematics
@pytest.mark.parametrize(
    ("balancer", "message"),
    [
        (
            Averaged(),
            r"`Averaged` must give the same update when a head without a gradient is added .*kind: random, 2 heads",
        ),
        (Normalised(), r"`Normalised` must be finite if a head has no gradient\. .*kind: random, 2 heads"),
        (FirstOnly(), r"`FirstOnly` must not depend on the order of the heads \(relative difference .*random, 2 heads"),
        (Forgetful(2.0), r"`Forgetful` must return all arguments of the constructor, and only these, from `get_config`"),
        (Widening(), r"`Widening` must have the gradients' dtype"),
    ],
)
def test_what_is_wrong_is_named(balancer, message):
    with pytest.raises(AssertionError, match=message):
        check_balancer(balancer, num_heads=(2,), xla=False)


def test_a_class_without_a_method_says_what_is_missing():
    with pytest.raises(NotImplementedError, match=r"`Balancer` must implement `coefficients\(gramian\)`, or name"):
        balancing.Balancer()([[1.0, 2.0]])
