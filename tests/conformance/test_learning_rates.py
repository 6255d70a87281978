"""Learning rates and weight decay by part: an update moves each variable by a factor of the optimizer's own step."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import ByPath, LayerwiseDecay, MultiHeadTrainer, Stages
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

RATE, DECAY = 0.05, 0.1


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


@pytest.mark.first_cases(len(RATES))
@pytest.mark.parametrize(
    ("rates", "decayed"), [*zip(RATES, [False, True] * len(RATES)), *zip(RATES, [True, False] * len(RATES))]
)
def test_steps_are_those_of_gradient_descent_times_the_factors(rates, decayed):
    (given, factors), decays = RATES[rates], DECAYS if decayed else {}
    encoder, modules = tiny.modules()
    trainer = MultiHeadTrainer(encoder)
    losses = {"tag": tiny.losses.SequenceCrossentropy(), "price": "sparse_categorical_crossentropy", "size": "mse"}
    for name, module in modules.items():
        by_part = {"learning_rate_multiplier": given.get(name, 1.0), "weight_decay_multiplier": decays.get(name, 1.0)}
        trainer.add_head(name, module, losses[name], ignore_label=-1 if name == "price" else None, **by_part)
    by_part = {
        "encoder_learning_rate_multiplier": given.get("encoder", 1.0),
        "encoder_weight_decay_multiplier": decays.get("encoder", 1.0),
    }
    trainer.compile(keras.optimizers.SGD(RATE, weight_decay=DECAY if decayed else None), balancer="UPGrad", **by_part)
    batch = tiny.data(6)
    trainer.compute_gradients(batch)  # builds
    variables = [each for part in (encoder, *modules.values()) for each in part.trainable_variables]
    for update in range(3):
        gradients = {id(tiny.tensor_variable(v)): g for g, v in trainer.compute_gradients(batch)}
        before = tiny.values(variables)
        trainer.train_on_batch(*batch)
        changes = zip(variables, before, tiny.values(variables), factors(update), DECAYS_OF_VARIABLES, strict=True)
        for variable, old, new, factor, decay in changes:
            gradient = gradients.get(id(tiny.tensor_variable(variable)))
            step = 0.0 if gradient is None else tf.convert_to_tensor(gradient).numpy()
            wanted = old - RATE * factor * (step + decayed * DECAY * decay * old)
            if factor == 0:
                np.testing.assert_array_equal(new, old)
            np.testing.assert_allclose(new, wanted, rtol=1e-5, atol=1e-6)
