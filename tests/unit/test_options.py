"""What `compile` is told, checked once."""

from __future__ import annotations

import pytest

from multihead import balancing, clipping, schedules, weighting
from multihead._ground.keras import KERAS_3
from multihead._trainer.options import CompileOptions
from tests.helpers import tiny

PLAIN = {
    "weighting": None,
    "balancer": None,
    "balance_at": "representation",
    "balance_every": 1,
    "head_schedule": schedules.Together(),
    "clip": None,
    "micro_batches": 1,
    "gradient_accumulation_steps": 1,
    "telemetry": "norms",
    "on_nonfinite": "skip",
    "max_skipped_updates": 25,
    "check_labels": True,
    "encoder_learning_rate_multiplier": 1.0,
    "encoder_weight_decay_multiplier": 1.0,
    "run_eagerly": None,
    "steps_per_execution": 1,
    "jit_compile": None,
}


def checked(**options):
    given = {**PLAIN, **options}
    given |= {"weighting": weighting.get(given["weighting"]), "balancer": balancing.get(given["balancer"])}
    return CompileOptions(**given).checked(["a", "b"])


def test_names_become_methods_that_know_the_heads():
    found = checked(weighting="dwa", balancer="up_grad", clip=clipping.ByValue(1.0))
    assert isinstance(found.weighting, weighting.DWA) and isinstance(found.balancer, balancing.UPGrad)
    assert isinstance(found.head_schedule, schedules.Together)
    assert found.weighting.head_names == found.balancer.head_names == found.head_schedule.head_names == ("a", "b")
    assert set(vars(found)) == set(PLAIN)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"head_schedule": "Together"},
            TypeError,
            "`head_schedule` must be an instance of .* in multihead.schedules. Received: head_schedule='Together'",
        ),
        ({"clip": 5.0}, TypeError, "`clip` must be an instance of .* in multihead.clipping. Received: clip=5.0"),
        ({"balance_at": "params"}, ValueError, "`balance_at` must be one of .* Received: balance_at='params'.*'parameters'"),
        ({"telemetry": "all"}, ValueError, "`telemetry` must be one of None, 'norms', 'full'. Received: telemetry='all'"),
        ({"check_labels": None}, ValueError, "`check_labels` must be one of True, False. Received: check_labels=None"),
        (
            {"micro_batches": 0},
            ValueError,
            "`micro_batches` must be a whole number of at least 1. Received: micro_batches=0",
        ),
        ({"balance_every": 1.5}, ValueError, "`balance_every` must be a whole number of at least 1"),
        ({"balancer": "MoCo"}, ValueError, "`balance_at` must be one of 'parameters' for MoCo"),
        ({"balancer": "GradDrop", "balance_every": 2}, ValueError, "`balance_every` must be 1 for GradDrop"),
        (
            {"balancer": "GradDrop", "micro_batches": 2},
            ValueError,
            "`balance_at` must be 'parameters' for GradDrop with several",
        ),
        ({"balancer": balancing.UPGrad({"c": 1.0})}, ValueError, "`preference` must name only heads: 'c' is not a head"),
    ],
)
def test_options_out_of_their_range_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        checked(**options)


@pytest.mark.parametrize("steps", [0, "often", 2.5, *(["auto"] if KERAS_3 else [])])
def test_steps_at_once_are_a_number_or_on_keras_2_tuned(steps):
    with pytest.raises(ValueError, match="`steps_per_execution` must be a whole number.* Received: steps_per_execution="):
        checked(steps_per_execution=steps)
    assert checked(steps_per_execution=None).steps_per_execution == 1
    assert KERAS_3 or checked(steps_per_execution="auto").updates_at_once == 1


def test_what_tensorflow_cannot_run_on_several_replicas_is_refused(two_replicas):
    with two_replicas.scope():
        trainer = tiny.trainer()
        with pytest.raises(
            ValueError, match="`jit_compile` must not be True for several replicas on CPUs, .* with 2 replicas. Omit"
        ):
            trainer.compile("sgd", jit_compile=True)
        if KERAS_3:
            with pytest.raises(
                ValueError, match="`steps_per_execution` must be 1 for several replicas on Keras 3.* with 2 replicas"
            ):
                trainer.compile("sgd", steps_per_execution=2)
        else:
            trainer.compile("sgd", steps_per_execution=2)
        trainer.compile("sgd", steps_per_execution=2, run_eagerly=True)
