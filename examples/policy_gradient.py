"""How do you train on episodes that do not fit in one batch, with a policy and a value head on one encoder?

REINFORCE with a value head on CartPole, whose episodes last up to 500 time steps. One update uses sixteen episodes: their
time steps are split into mini-batches, whose gradients are accumulated with their counts. This gives the update of all time
steps in one batch. Policy and value are two heads of a `MultiHeadTrainer`. Three seeds each play until a hundred
consecutive episodes last 195 time steps on average.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer
from multihead.accumulation import GradientAccumulator

Array = np.ndarray[Any, Any]
ENVIRONMENTS, MINI_BATCH, DISCOUNT = 16, 256, 0.99
WINDOW, SOLVED = 100, 195.0


class Episodes(NamedTuple):
    """Finished episodes, one per environment; their time steps, ordered by time and then by environment.

    Attributes:
        observations: `[steps, 4]`.
        actions: `[steps]`, 0 or 1.
        to_come: `[steps]` discounted future rewards, multiplied by `1 - DISCOUNT`, so that they are at most 1.
        lengths: `[ENVIRONMENTS]` episode lengths, which are also the returns: every time step has a reward of 1.
    """

    observations: Array
    actions: Array
    to_come: Array
    lengths: Array


def policy_loss(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """`-A_t log p(action_t)` of each time step; targets `[steps, 2]` are the actions and their advantages `A_t`."""
    actions = tf.cast(targets[:, 0], tf.int32)
    return targets[:, 1] * tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)


class Agent:
    """A policy and a value on one encoder.

    Args:
        seed: Seed of the weights.
        optimizer: A Keras optimizer.
    """

    def __init__(self, seed: int, optimizer: Any) -> None:
        keras.utils.set_random_seed(seed)
        self.trainer = MultiHeadTrainer(keras.Sequential([keras.layers.Dense(64, activation="tanh")]))
        self.trainer.add_head("policy", keras.layers.Dense(2), policy_loss)
        self.trainer.add_head("value", keras.layers.Dense(1), "mse")
        self.trainer.compile(optimizer)
        steps, none = np.zeros([1, 4], "float32"), np.zeros([1, 2], "float32")
        pairs = self.trainer.compute_gradients((steps, {"policy": none, "value": none[:, :1]}))
        self.variables = [variable for _, variable in pairs]
        self._accumulator = GradientAccumulator(self.variables)
        of_steps = tf.TensorSpec([None, 4])
        self.answers = tf.function(self._answers, input_signature=[of_steps])
        self.gradients = tf.function(
            self._gradients, input_signature=[of_steps, tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])]
        )

    def _answers(self, observations: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The probability of action 1 and the value, `[steps]` each."""
        answers = self.trainer(observations)
        return tf.nn.softmax(answers["policy"])[:, 1], answers["value"][:, 0]

    def _gradients(self, observations: tf.Tensor, acted: tf.Tensor, values: tf.Tensor) -> list[Any]:
        pairs = self.trainer.compute_gradients((observations, {"policy": acted, "value": values}))
        return [gradient for gradient, _ in pairs]

    def mini_batches(self, episodes: Episodes, size: int) -> Iterator[tuple[Array, Array, Array]]:
        """Observations, actions with advantages (standardized over all time steps), and target values."""
        advantages = episodes.to_come - self.answers(episodes.observations)[1].numpy()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        acted = np.stack([episodes.actions, advantages], axis=1).astype("float32")
        for start in range(0, len(acted), size):
            part = slice(start, start + size)
            yield episodes.observations[part], acted[part], episodes.to_come[part, np.newaxis]

    def learn(self, episodes: Episodes, size: int = MINI_BATCH) -> None:
        """One update from all time steps, in the memory of `size` of them."""
        self._accumulator.reset()
        for batch in self.mini_batches(episodes, size):
            self._accumulator.add(self.gradients(*batch), count=len(batch[0]))
        self.trainer.apply_gradients(zip(self._accumulator.mean(), self.variables))


def play(agent: Agent, environments: Any, generator: np.random.Generator) -> Episodes:
    """One episode in each environment, in parallel, with one call of the policy for all."""
    observation, _ = environments.reset(seed=int(generator.integers(2**31 - 1)))
    playing = np.ones(ENVIRONMENTS, bool)
    observations, actions, played = [], [], []
    while playing.any():
        probability, _ = agent.answers(observation)
        action = (generator.random(ENVIRONMENTS) < probability.numpy()).astype("int64")
        observations.append(observation.copy())
        actions.append(action)
        played.append(playing.copy())
        observation, _, terminated, truncated, _ = environments.step(action)
        playing &= ~(terminated | truncated)  # a finished environment restarts; its new episode is ignored
    mask = np.stack(played)
    to_come = np.zeros(mask.shape, "float32")
    following = np.zeros(ENVIRONMENTS)
    for step in range(len(mask) - 1, -1, -1):
        following = mask[step] * (1 - DISCOUNT + DISCOUNT * following)
        to_come[step] = following
    return Episodes(np.stack(observations)[mask], np.stack(actions)[mask], to_come[mask], mask.sum(axis=0))


class Run(NamedTuple):
    """One seed's training: all episode lengths, whether the task was solved, updates, and the steps of the largest one."""

    lengths: list[int]
    solved: bool
    updates: int
    most_steps: int


def train(seed: int, updates: int, advance: Callable[[], None] = lambda: None) -> Run:
    """Plays and learns until the task is solved, or for the given number of updates."""
    import gymnasium

    agent = Agent(seed, keras.optimizers.Adam(0.01))
    generator = np.random.default_rng(seed)
    environments = gymnasium.make_vec("CartPole-v1", num_envs=ENVIRONMENTS)
    lengths: list[int] = []
    most = done = 0
    while done < updates and (len(lengths) < WINDOW or np.mean(lengths[-WINDOW:]) < SOLVED):
        episodes = play(agent, environments, generator)
        agent.learn(episodes)
        lengths += episodes.lengths.tolist()
        most = max(most, len(episodes.actions))
        done += 1
        advance()
    environments.close()
    solved = len(lengths) >= WINDOW and bool(np.mean(lengths[-WINDOW:]) >= SOLVED)
    return Run(lengths, solved, done, most)


def averages(lengths: list[int]) -> Array:
    """The mean of the last hundred lengths (or of all, if fewer) after each episode."""
    sums = np.cumsum([0, *lengths])
    ends = np.arange(1, len(lengths) + 1)
    starts = np.maximum(ends - WINDOW, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


@_style.styled
def draw(runs: dict[int, Run]) -> Any:
    """Draws the length of every episode and the moving average over a hundred episodes."""
    figure, axis = _style.new_figure(1, 1, 4.2)
    for color, (seed, run) in zip((_style.BLUE, _style.ORANGE, _style.GREEN), runs.items()):
        episodes = np.arange(1, len(run.lengths) + 1)
        axis.plot(episodes, run.lengths, ".", color=color, ms=3, alpha=0.3)
        axis.plot(episodes, averages(run.lengths), color=color, lw=2.5, label=f"seed {seed}")
    axis.axhline(SOLVED, color=_style.GREY, lw=1, ls="--")
    axis.text(0, SOLVED + 6, f"solved: a mean of {SOLVED:g}", va="bottom", color=_style.GREY)
    axis.set(xlabel="episode", ylabel="time steps that the pole stands", ylim=(0, 515))
    axis.set_title(
        f"The pole stands: {sum(run.solved for run in runs.values())} of {len(runs)} seeds solve CartPole\n"
        f"dots: episodes; lines: mean of the last {WINDOW}"
    )
    axis.legend(frameon=False)
    return figure


def run(session: Session) -> None:
    """Trains three seeds and shows the results."""
    updates = 3 if session.quick else 200
    runs = {}
    for seed in range(session.seed, session.seed + 3):
        with session.progress(f"seed {seed}, updates", updates) as advance:
            runs[seed] = train(seed, updates, advance)
    rows = []
    for seed, run in runs.items():
        counts = (len(run.lengths), run.updates, run.most_steps, -(-run.most_steps // MINI_BATCH))
        rows.append([f"seed {seed}", *map(str, counts), f"{averages(run.lengths)[-1]:.1f}", "yes" if run.solved else "no"])
    title = f"CartPole-v1: time steps and mini-batches of the largest update, mean of the last {WINDOW} returns"
    session.table(title, ["", "episodes", "updates", "steps", "batches", "mean", "solved"], rows)
    session.save(draw(runs))


main = partial(run_program, "policy_gradient", __doc__, run, needs=("matplotlib", "rich", "gymnasium"))

if __name__ == "__main__":
    sys.exit(main())
