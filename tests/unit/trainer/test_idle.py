"""Who is awake, without a trainer."""

from __future__ import annotations

from multihead._trainer.state import IdleHeads


def test_a_variable_says_who_is_awake():
    idle = IdleHeads()
    awake = idle.create("abc")
    assert awake.numpy().tolist() == [1, 1, 1] and not awake.trainable
    idle.set(["b"], "abc")
    assert awake.numpy().tolist() == [1, 0, 1] and idle.create("abc") is awake
    idle.set([], "abc")
    assert awake.numpy().tolist() == [1, 1, 1]


def test_heads_may_be_idle_before_there_is_a_variable():
    idle = IdleHeads()
    idle.set(["a"], "ab")
    assert idle.awake is None and idle.create("ab").numpy().tolist() == [0, 1]


def test_other_heads_begin_awake():
    idle = IdleHeads()
    idle.create("ab")
    idle.set(["a"], "ab")
    idle.forget()
    assert idle.create("abc").numpy().tolist() == [1, 1, 1]
