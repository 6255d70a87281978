"""How large should the weight of a critic's loss be, where actor and critic share an encoder?

A2C on CartPole: an update from 32 steps of each of 16 environments. Prints how many steps the last 100 episodes lasted,
after each quarter of the updates: mean and standard deviation over seeds.
"""

from __future__ import annotations

import argparse

import gymnasium
import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing

ENVIRONMENTS, STEPS, DISCOUNT = 16, 32, 0.99
WAYS: dict[str, dict] = {f"weight {weight}": {"weight": weight} for weight in (0.5, 0.05, 0.005, 0.0005)}
WAYS |= {"NormFloor(1.0)": {"balancer": balancing.NormFloor(1.0)}, "encoder of the actor": {"trains_encoder": False}}


def policy_loss(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """`-A log p(action)` minus 0.01 times the entropy, `[steps]`; targets `[steps, 2]` are actions and advantages `A`."""
    actions, log = tf.cast(targets[:, 0], tf.int32), tf.nn.log_softmax(logits)
    return -targets[:, 1] * tf.gather(log, actions, batch_dims=1) + 0.01 * tf.reduce_sum(tf.exp(log) * log, axis=1)


def train(seed: int, updates: int, reward: float, balancer: balancing.Balancer | None = None, **critic: float) -> np.ndarray:
    """Trains an agent; returns the mean length of the last 100 episodes after each update."""
    keras.utils.set_random_seed(seed)
    trainer = MultiHeadTrainer(keras.Sequential([keras.layers.Dense(64, activation="tanh") for _ in range(2)]))
    trainer.add_head("policy", keras.layers.Dense(2), policy_loss)
    trainer.add_head("value", keras.layers.Dense(1), "mse", **critic)
    trainer.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, updates)), balancer=balancer)
    answers = tf.function(trainer.call)

    @tf.function
    def learn(observations: tf.Tensor, targets: dict[str, tf.Tensor], weights: dict[str, tf.Tensor]) -> None:
        trainer.apply_gradients(trainer.compute_gradients((observations, targets, weights)))

    environments, generator = gymnasium.make_vec("CartPole-v1", num_envs=ENVIRONMENTS), np.random.default_rng(seed)
    observation, lengths, episodes, history = environments.reset(seed=seed)[0], np.zeros(ENVIRONMENTS), [], []
    ended = np.zeros(ENVIRONMENTS, bool)
    for _ in range(updates):
        seen, actions, counts, fails, ends = [observation.copy()], [], [], [], []
        for _ in range(STEPS):
            likely = tf.nn.softmax(answers(seen[-1])["policy"]).numpy()[:, 1]
            actions.append((generator.random(ENVIRONMENTS) < likely).astype(int))
            observation, _, fell, stopped, _ = environments.step(actions[-1])
            counts.append(~ended)  # the step after an end only resets
            lengths, ended = np.where(ended, 0, lengths + 1), fell | stopped
            episodes += lengths[ended].tolist()
            for rows, row in ((seen, observation), (fails, fell), (ends, ended)):
                rows.append(row.copy())
        values = answers(np.concatenate(seen))["value"].numpy().reshape(STEPS + 1, ENVIRONMENTS)
        returns = values.copy()  # of the last step: estimated
        for at in reversed(range(STEPS)):
            returns[at] = reward + DISCOUNT * np.where(fails[at], 0, np.where(ends[at], values[at + 1], returns[at + 1]))
        acted = np.stack([np.concatenate(actions), (returns - values)[:-1].ravel()], axis=1)
        targets, weights = {"policy": acted, "value": returns[:-1].reshape(-1, 1)}, np.concatenate(counts)
        learn(np.concatenate(seen[:-1]), targets, dict.fromkeys(targets, weights))
        history.append(np.mean(episodes[-100:]) if episodes else STEPS)
    return np.array(history)


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    parser = argparse.ArgumentParser(prog="python -m examples.actor_critic", description=__doc__)
    for name, default, text in (("updates", 240, "of a run"), ("seeds", 5, "of each way"), ("reward", 1.0, "of a step")):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    options, found = parser.parse_args(arguments), {}
    for name, way in WAYS.items():
        runs = np.array([train(seed, options.updates, options.reward, **way) for seed in range(options.seeds)])
        found[name] = runs[:, [options.updates * part // 4 - 1 for part in (1, 2, 3, 4)]]
        print(f"{name}: " + ", ".join(f"{np.mean(part):.0f} ± {np.std(part):.0f}" for part in found[name].T), flush=True)
    return found


if __name__ == "__main__":
    main()
