"""Who takes part: what is known of a group before an update, and what the update says, against all updates that can be."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from multihead._update.participation import Group, Participation

HEADS = 3
OWNERS = [owners for number in range(HEADS + 1) for owners in itertools.combinations(range(HEADS), number)]
"""Every set of heads that may own a group; that of nobody, of all, and the encoder of some are among them."""


def updates(always):
    """The sets of active heads of the updates that may be applied, if some heads train in all of them."""
    everyone = itertools.product([False, True], repeat=HEADS)
    return [active for active in everyone if any(active) and all(active[k] for k in always)]


@pytest.mark.parametrize("always", OWNERS)
def test_a_group_is_left_out_if_nobody_who_owns_it_is_active(always):
    groups = [Group(owners, (), ()) for owners in OWNERS]
    for encoder, active in itertools.product(OWNERS, updates(always)):
        known = [k in always for k in range(HEADS)]
        conditional = [not is_known for is_known in known]
        made = Participation.of(
            [Group(encoder, (), ()), *groups], tf.constant(active), always=known, conditional=conditional
        )
        for owners, group in zip([encoder, *OWNERS], made.groups, strict=True):
            trains = any(active[k] for k in owners)
            never_left_out = all(any(other[k] for k in owners) for other in updates(always))
            assert (group.trained is None) == never_left_out
            assert group.trained is None or bool(group.trained) == trains
        assert made.trains_encoder.numpy().tolist() == [active[k] and k in encoder for k in range(HEADS)]
        assert made.encoder is made.groups[0].trained and bool(made.any)
        sees = any(active[k] for k in encoder)
        assert [bool(made.methods_see(tf.constant(applied))) for applied in (True, False)] == [sees, False]
        assert [flag is None for flag in made.computed] == known
        assert all(flag is None or bool(flag) == active[k] for k, flag in enumerate(made.computed))
