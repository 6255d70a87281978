"""A callback of `fit` that lets the twin make the same updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from tests.sequences.twin import Logs

if TYPE_CHECKING:
    from tests.sequences.machine import Machine

MOMENTS = ("train begin", "epoch begin", "batch begin", "batch end", "epoch end")


class Follower(keras.callbacks.Callback):
    """Makes the twin's updates in step with those of a `fit`, compares, and calls methods of the trainer in between.

    Args:
        machine: The machine.
        epochs: The windows of every epoch.
        actions: Triples of a moment, its number among those moments of the `fit`, and a function without arguments.
        validation: The batches of the validation, or None.
        after: Of a run that continues: the place at which it must begin, and the twin's states by place.
    """

    def __init__(self, machine: Machine, epochs: list[Any], actions: Any, validation: Any = None, after: Any = None) -> None:
        super().__init__()
        self.machine, self.epochs, self.actions, self.validation, self.after = machine, epochs, actions, validation, after
        self.states: dict[Any, Any] = {}
        present = {name for windows in epochs for window in windows for batch in window for name in batch[1]}
        self.absent = set(machine.twin.trained) - present
        self.epoch = self.updates = 0
        self.weights: dict[str, float] = {}
        self.seen: dict[str, int] = dict.fromkeys(MOMENTS, 0)

    def get_run_state(self) -> dict[str, Any]:
        return {}

    def set_run_state(self, state: Any) -> None:
        pass

    def act(self, moment: str, number: int) -> None:
        for when, at, action in self.actions:
            if (when, at) == (moment, number):
                self.machine.moment, self.machine.absent = moment, self.absent
                try:
                    action()
                finally:
                    self.machine.moment, self.machine.absent = None, set()
                self.machine.compare(f"after an action at {moment} {number}")

    def on_train_begin(self, logs: Any = None) -> None:
        self.machine.twin.build()
        self.machine.twin.idle = set()
        self.weights = self.machine.twin.weights_of_evaluation()
        if self.after is None:
            self.act("train begin", 0)

    def number_of(self, epoch: int, batch: int = 0) -> int:
        return sum(len(windows) for windows in self.epochs[:epoch]) + batch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        if self.after is not None and self.after[0][0] == epoch:
            if self.after[0][1]:
                return
            self.enter((epoch, 0))
        self.machine.twin.logs = Logs()
        self.note((epoch, 0))
        self.act("epoch begin", epoch)

    def note(self, place: Any) -> None:
        self.states[place] = self.machine.twin.state()

    def enter(self, place: Any) -> None:
        """The first place of a run that continues."""
        expected, states = self.after
        assert place == expected, f"the run continues at {place} in place of {expected}"
        self.after = None
        self.machine.restore(states[place])
        self.machine.compare("where a run continues")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == len(self.epochs[self.epoch]):  # Keras 2 notes the end of data of unknown length only afterwards
            return
        if self.after is not None:
            self.enter((self.epoch, batch))
        self.act("batch begin", self.number_of(self.epoch, batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        machine = self.machine
        machine.twin.update(self.epochs[self.epoch][batch])
        self.updates += 1
        machine.counts["updates"] += 1
        machine.compare(f"after batch {batch} of epoch {self.epoch}")
        expected = machine.twin_logs()
        if not machine.twin.logs.applied:
            del expected["loss"]  # of nothing: 0, at which `TerminateOnNaN` does not stop
        machine.compare_logs(logs, expected, "in a batch")
        self.act("batch end", self.number_of(self.epoch, batch))
        self.note((self.epoch, batch + 1))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        machine = self.machine
        expected = machine.twin_logs()
        if self.validation is not None:
            found = machine.twin.evaluate(self.validation, self.weights)
            expected |= {f"val_{name}": value for name, value in found.items()}
        machine.compare_logs(logs, expected, "of an epoch", whole="val_")
        self.act("epoch end", epoch)
        self.note((epoch + 1, 0))
