"""A run that was killed, or interrupted, and goes on ends as the run that was never stopped."""

from __future__ import annotations

import collections
import os
import signal
from pathlib import Path

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, balancing
from multihead._runs.variables import values_of, variables_of
from multihead.callbacks import Checkpoint
from tests.helpers import tiny

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
Y = {"a": X.sum(1, keepdims=True), "b": (X[:, 0] > 0).astype("int64")}


def made(units=4, heads="ab", balancer=None, optimizer="adam", run_eagerly=True):
    keras.utils.set_random_seed(2)
    trainer = MultiHeadTrainer(keras.layers.Dense(units, activation="tanh"))
    for name in heads:
        loss = "sparse_categorical_crossentropy" if name == "b" else "mse"
        trainer.add_head(name, keras.layers.Dense(2, activation="softmax") if name == "b" else keras.layers.Dense(1), loss)
    trainer.compile(optimizer, balancer=balancer, run_eagerly=run_eagerly)
    targets = {**Y, "c": Y["a"]}
    trainer.compute_gradients((X, {name: targets[name] for name in heads}))
    return trainer


def fit(trainer, folder, epochs=2, **options):
    callbacks = [*options.pop("callbacks", []), Checkpoint(folder, every=1)]
    return trainer.fit(X, Y, batch_size=4, epochs=epochs, callbacks=callbacks, **{"verbose": 0, **options})


def same(one, other):
    pairs = zip(values_of(variables_of(one)).values(), values_of(variables_of(other)).values(), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def test_ctrl_c_keeps_what_was_trained_and_says_how_to_go_on(tmp_path, capsys):
    class CtrlC(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1 and int(self.model.update_count) == 4:
                os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    whole, cut, resumed = made(run_eagerly=False), made(), made(run_eagerly=False)
    history = fit(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(cut, tmp_path / "cut", callbacks=[CtrlC()])
    assert "epoch 2, batch 2" in capsys.readouterr().err and int(cut.update_count) == 5
    assert signal.getsignal(signal.SIGINT) is handler
    assert fit(resumed, tmp_path / "cut").history == history.history
    assert same(whole, resumed)


def test_a_run_that_has_ended_is_not_run_again_and_can_be_made_longer(tmp_path, capsys):
    first, again, longer, whole = (made() for _ in range(4))
    history = fit(first, tmp_path / "run")
    assert fit(again, tmp_path / "run", verbose=2).history == history.history
    assert "has ended; its result is loaded, and nothing is trained" in capsys.readouterr().out
    assert same(first, again) and int(again.update_count) == 6
    fit(longer, tmp_path / "run", epochs=3)
    fit(whole, tmp_path / "whole", epochs=3)
    assert same(longer, whole)


def test_a_run_that_was_stopped_early_stays_stopped(tmp_path):
    def stopping():
        return [keras.callbacks.EarlyStopping("a_loss", mode="max", patience=0, restore_best_weights=True)]

    first, again = made(), made()
    fit(first, tmp_path, epochs=9, callbacks=stopping())
    fit(again, tmp_path, epochs=9, callbacks=stopping())
    assert int(first.optimizer.iterations) == int(again.optimizer.iterations) < 27
    for one, other in zip(tiny.weights_of(first), tiny.weights_of(again), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    fit(made(balancer=balancing.GradVac()), folder)
    return folder


def loaded(trainer, folder, content=None, tmp_path=None, **options):
    """Loads a checkpoint, or one with other content, and returns what it warns of; an error leaves the trainer as it was."""
    if content is not None:
        folder = tmp_path / "other"
        folder.mkdir(exist_ok=True)
        (folder / "run.checkpoint").write_bytes(content)
    before = values_of(variables_of(trainer))
    try:
        return Checkpoint(folder, **options).load(trainer)
    except ValueError:
        for name, value in values_of(variables_of(trainer)).items():
            np.testing.assert_array_equal(value, before[name])
        raise


def test_damaged_files_are_refused(saved, tmp_path):
    content = (saved / "run.checkpoint").read_bytes()
    trainer = made(balancer=balancing.GradVac())
    before = values_of(variables_of(trainer))
    rng = np.random.default_rng(0)
    size = len(content)
    places = [*range(55), *rng.integers(55, size - 600, 40), *rng.integers(size - 600, size, 40)]  # header, data, index
    flipped = [content[:place] + bytes([content[place] ^ (1 << rng.integers(8))]) + content[place + 1 :] for place in places]
    shortened = [content[:length] for length in (0, 1, 23, 54, size - 1, *rng.integers(55, size, 40))]
    (tmp_path / "run.checkpoint").touch()
    for damaged in [*flipped, *shortened, content + b"0", b"PK" + content, content[::-1]]:
        (tmp_path / "run.checkpoint").write_bytes(damaged)
        with pytest.raises(ValueError, match="The checkpoint must be a whole file"):
            Checkpoint(tmp_path).load(trainer)
    (tmp_path / "run.checkpoint").write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(ValueError, match="bytes whose digest differs from the saved one: the file is damaged"):
        Checkpoint(tmp_path).load(trainer)
    for name, value in values_of(variables_of(trainer)).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("other", "row"),
    [
        ({"units": 5}, r"encoder/0 +kernel float32 \[3, 4\] +kernel float32 \[3, 5\]"),
        ({"heads": "ac"}, r"heads +a, b +a, c"),
        ({"heads": "ba"}, r"heads +a, b +b, a"),
        ({"balancer": "UPGrad"}, r"balancer +GradVac\(.*UPGrad\("),
        ({"optimizer": "sgd"}, "optimizer +Adam +SGD"),
    ],
    ids=["units", "heads", "order of heads", "balancer", "optimizer"],
)
def test_checkpoints_of_other_trainers_are_refused_with_both_lists(saved, other, row):
    with pytest.raises(ValueError, match=rf"(?s)does not fit.*checkpoint +trainer\n.*{row}"):
        loaded(made(**{"balancer": balancing.GradVac(), **other}), saved)


def test_a_checkpoint_of_the_other_stack_is_refused(tmp_path):
    """The files in `saved/` were written on each stack by `fit(made(balancer=balancing.GradVac()), folder, epochs=1)`."""
    present = int(keras.__version__[0])
    for stack in (2, 3):
        content = (Path(__file__).parent / "saved" / f"keras_{stack}.checkpoint").read_bytes()
        if stack == present:
            loaded(made(balancer=balancing.GradVac()), None, content, tmp_path)
        else:
            with pytest.raises(ValueError, match=rf"stack +Keras {stack} +Keras {present}"):
                loaded(made(balancer=balancing.GradVac()), None, content, tmp_path)


def test_without_strict_what_matches_is_loaded_and_the_rest_is_said(saved):
    source, trainer = made(balancer=balancing.GradVac()), made(heads="ac")
    loaded(source, saved)
    of_c = tiny.values(trainer.heads["c"].module.weights)
    with pytest.warns(RuntimeWarning, match=r"(?s)heads +a, b +a, c.*head 'b'.*not loaded"):
        loaded(trainer, saved, strict=False)
    for part in ("encoder", "a"):
        one, other = (each.encoder if part == "encoder" else each.heads["a"].module for each in (source, trainer))
        for a, b in zip(tiny.values(one.weights), tiny.values(other.weights), strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(of_c, tiny.values(trainer.heads["c"].module.weights), strict=True):
        np.testing.assert_array_equal(a, b)


class Backup(keras.callbacks.BackupAndRestore):
    """A callback of Keras with a method of the user's, which Keras calls and which restores at epochs."""

    restored = 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        Backup.restored = self.model.num_updates


class Cut(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise RuntimeError("cut")


@pytest.mark.thorough
def test_a_subclass_of_keras_backup_resumes_at_epochs_and_keeps_its_methods(tmp_path):
    def run(folder, *others):
        trainer = made(balancer=balancing.GradVac())
        callbacks = [Backup(str(tmp_path / folder)), *others]
        trainer.fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
        return trainer

    whole = run("whole")
    with pytest.raises(RuntimeError, match="cut"):
        run("cut", Cut())
    resumed = run("cut")
    assert resumed.history.epoch == [2] and Backup.restored == 6
    same(whole, resumed)


def test_bad_use_is_said():
    with pytest.raises(ValueError, match="`every` must be a whole number"):
        Checkpoint("folder", every=0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="saves a `MultiHeadTrainer`.*Sequential"):
        model.fit(X, Y["a"], verbose=0, callbacks=[Checkpoint("folder")])
    with pytest.raises(ValueError, match="at most one `Checkpoint`.*Received: 2"):
        made().fit(X, Y, verbose=0, callbacks=[Checkpoint("one"), keras.callbacks.BackupAndRestore("two")])


class Kept(keras.callbacks.Callback):
    """Keeps what it sees of the epochs in each kind of collection; may end the process, so to say, when an epoch begins."""

    def __init__(self, cut_at=None):
        super().__init__()
        self.cut_at = cut_at
        self.number, self.text, self.array, self.rows, self.pair = 0, "", np.zeros(2), [], (0, 0.0)
        self.by_name, self.default, self.counted = {"a": {"b": [0]}}, collections.defaultdict(list), collections.Counter()
        self.ordered, self.latest, self.different = collections.OrderedDict(), collections.deque(maxlen=2), set()

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.cut_at:
            raise InterruptedError

    def on_epoch_end(self, epoch, logs=None):
        self.number, self.text, self.array, self.pair = (
            self.number + 1,
            f"{self.text}{epoch}",
            self.array + epoch,
            (epoch, 0.5),
        )
        self.rows.append({"epoch": epoch, "of": ["a", None, True]})
        self.by_name["a"]["b"].append(epoch)
        self.default[f"by {epoch % 2}"].append(epoch)
        self.counted[epoch % 2] += 1
        self.ordered[f"{epoch}"] = epoch
        self.latest.append(epoch)
        self.different.add(epoch)

    def state(self):
        others = ("cut_at", "model", "_model", "params", "validation_data")
        return {name: value for name, value in vars(self).items() if name not in others}


@pytest.mark.thorough
def test_a_callback_of_ones_own_goes_on_with_each_kind_of_collection(tmp_path):
    whole, cut, resumed = Kept(), Kept(cut_at=3), Kept()
    fit(made(), tmp_path / "whole", epochs=5, callbacks=[whole])
    with pytest.raises(InterruptedError):
        fit(made(), tmp_path / "cut", epochs=5, callbacks=[cut])
    fit(made(), tmp_path / "cut", epochs=5, callbacks=[resumed])
    wanted, got = whole.state(), resumed.state()
    np.testing.assert_array_equal(got.pop("array"), wanted.pop("array"))
    assert got == wanted and len(got) >= 10
    assert [type(value) for value in got.values()] == [type(value) for value in wanted.values()]
    assert resumed.latest.maxlen == 2 and resumed.default["new"] == [] and resumed.counted["new"] == 0


Row = collections.namedtuple("Row", "epoch")


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("add", [lambda: object(), lambda: Row(1), lambda: np.array([None, {}]), lambda: frozenset([1])])
@pytest.mark.parametrize("kind", [list, dict])
def test_what_cannot_be_saved_of_a_callback_is_said_once(add, kind, tmp_path):
    class Lost(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.lost, self.unchanged, self.not_data = kind(), [object()], object()

        def on_epoch_end(self, epoch, logs=None):
            self.lost = [*self.lost, add()] if kind is list else {**self.lost, epoch: add()}

    message = rf"`Checkpoint` cannot save `lost` of Lost, which training changes. Received: {kind.__name__} of other values"
    with pytest.warns(RuntimeWarning, match=message) as warned:
        fit(made(), tmp_path, epochs=3, callbacks=[Lost()])
    assert [warning.category for warning in warned].count(RuntimeWarning) == 1


def test_nothing_is_said_of_what_decides_by_itself_or_is_keras_own(tmp_path):
    class Own(keras.callbacks.Callback):
        seen = ()

        def on_epoch_end(self, epoch, logs=None):
            self.seen = [*self.seen, object()]

        def get_run_state(self):
            return {"number": len(self.seen)}

        def set_run_state(self, state):
            self.seen = [object()] * state["number"]

    own = Own()
    fit(made(), tmp_path / "run", epochs=2, callbacks=[Own(), keras.callbacks.TensorBoard(str(tmp_path / "logs"))])
    fit(made(), tmp_path / "run", epochs=3, callbacks=[own, keras.callbacks.TensorBoard(str(tmp_path / "logs"))])
    assert len(own.seen) == 3
