"""Learning rates by part: an update moves each variable by a factor of the optimizer's own step."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from multihead import ByPath, LayerwiseDecay, MultiHeadTrainer, Stages
from tests.helpers import balancing_reference, tiny
from tests.helpers.cases import quick
from tests.helpers.gathering import (
    BALANCINGS,
    GATHERINGS,
    UPDATES,
    assert_alike,
    batches_of_updates,
    dataset,
    padded,
)
from tests.helpers.reference import DECAY, built

# The optimizer of the trainer, the same without weight decay, and whether there is any.
OPTIMIZERS = {
    "momentum": (lambda: keras.optimizers.SGD(0.05, momentum=0.9),) * 2,
    "adam": (lambda: keras.optimizers.Adam(0.01, epsilon=1e-5),) * 2,
    "adamw": (
        lambda: keras.optimizers.AdamW(0.01, weight_decay=DECAY, epsilon=1e-5),
        lambda: keras.optimizers.Adam(0.01, epsilon=1e-5),
    ),
}


def pausing(step):
    """0 in the second update only."""
    return tf.where(step == 1, 0.0, 0.5)


# Of the encoder (embedding, kernel, bias) and the heads tag, price and size (kernel, bias): what the trainer is given, and the
# factors of all variables at each update.
RATES = {
    "numbers": ({"encoder": 0.3, "tag": 0, "price": 2.0}, lambda u: [0.3, 0.3, 0.3, 0, 0, 2, 2, 1, 1]),
    "paths": (
        {"encoder": ByPath({"embedding": 0, "bias": 0.5}), "size": LayerwiseDecay(0.5, top=0.2)},
        lambda u: [0, 1, 0.5, 1, 1, 1, 1, 0.2, 0.2],
    ),
    "function": (
        {"encoder": pausing, "price": pausing},
        lambda u: [0.5 * (u != 1)] * 3 + [1, 1] + [0.5 * (u != 1)] * 2 + [1, 1],
    ),
    "stages": (
        {"encoder": Stages({0: 0, 1: LayerwiseDecay(0.5)}), "tag": Stages({0: 1, 2: 0})},
        lambda u: ([0, 0, 0] if u < 1 else [0.5, 1, 1]) + [u < 2] * 2 + [1] * 4,
    ),
}
DECAYS = {"encoder": 0.5, "tag": 0, "price": ByPath({"bias": 0}), "size": 3.0}
DECAYS_OF_VARIABLES = [0.5, 0.5, 0.5, 0, 0, 1, 0, 3, 3]


def compiled(optimizer, rates, decays=None, **options):
    encoder, modules = tiny.modules()
    trainer = MultiHeadTrainer(encoder)
    losses = {"tag": tiny.losses.SequenceCrossentropy(), "price": "sparse_categorical_crossentropy", "size": "mse"}
    for name, module in modules.items():
        extra = {"ignore_label": -1} if name == "price" else {}
        by_part = {
            "learning_rate_multiplier": rates.get(name, 1.0),
            "weight_decay_multiplier": (decays or {}).get(name, 1.0),
        }
        trainer.add_head(name, module, losses[name], weight=tiny.WEIGHTS[name], **by_part, **extra)
    by_part = {
        "encoder_learning_rate_multiplier": rates.get("encoder", 1.0),
        "encoder_weight_decay_multiplier": (decays or {}).get("encoder", 1.0),
    }
    trainer.compile(optimizer, **by_part, **options)
    return trainer


# The first three have every optimizer, gathering and balancing.
CASES = [
    ("momentum", "whole", "sum", 1, "function"),
    ("adam", "micro-batches", "representation", 1, "stages"),
    ("adamw", "batches", "parameters", 1, "paths"),
    ("momentum", "whole", "sum", 1, "numbers"),
    ("adamw", "whole", "representation", 2, "function"),
    ("adam", "whole", "parameters", 1, "function"),
    ("momentum", "batches", "sum", 2, "stages"),
    ("adamw", "micro-batches", "sum", 2, "numbers"),
    ("momentum", "micro-batches", "parameters", 2, "paths"),
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("optimizer", "gathering", "balanced", "replicas", "rates"), quick(3, CASES))
def test_steps_are_those_of_a_tape_by_hand_times_the_factors(optimizer, gathering, balanced, replicas, rates, two_replicas):
    updates = batches_of_updates(missing=True)
    balancer, level = BALANCINGS[balanced]
    given, factors = RATES[rates]
    ours, plain = OPTIMIZERS[optimizer]
    has_decay = optimizer == "adamw"
    combine = None if balancer is None else lambda gramian: balancing_reference.coefficients(balancer, gramian)
    decays = DECAYS_OF_VARIABLES if has_decay else None
    by_hand = built(updates[0][0], plain(), tiny.WEIGHTS, combine, level, factors=factors, decays=decays)
    by_hand.optimizer.build(by_hand.variables)
    for batches in updates:
        by_hand.update(batches)

    num_batches, micro_batches = GATHERINGS[gathering]
    batches = [batch for update in updates for batch in update] if num_batches > 1 else [padded(u) for u in updates]
    options = {
        "balancer": balancer,
        "balance_at": level,
        "micro_batches": micro_batches,
        "gradient_accumulation_steps": num_batches,
    }
    strategy = two_replicas if replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        trainer = compiled(ours(), given, DECAYS if has_decay else None, **options)
    trainer.fit(dataset(batches), verbose=0, shuffle=False)
    assert tiny.values([trainer.update_count])[0] == UPDATES
    assert_alike(tiny.weights_of(trainer), tiny.values(by_hand.variables))
