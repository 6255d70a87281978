"""Pictures of a run: what they show, and that nothing in them overlaps."""

from __future__ import annotations

import json
import runpy
import sys

import keras
import numpy as np
import pytest

from multihead import plots
from tests.helpers.letters import small_letters

HEADS = ("price", "size", "kind")


@pytest.fixture(autouse=True)
def _command_is_not_imported(monkeypatch):
    """`runpy` warns if another test has imported the command."""
    monkeypatch.delitem(sys.modules, "multihead.__main__", raising=False)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A ledger of 60 updates, in which `size` is idle in every second one and its loss does not fall."""
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    rng = np.random.default_rng(0)
    with open(path, "w", encoding="utf-8") as file:
        for step in range(1, 61):
            line = {"step": step, "epoch": step // 20, "applied": step != 7}
            for k, head in enumerate(HEADS):
                is_idle = head == "size" and step % 2 == 0
                fall = 1.0 if head == "size" else np.exp(-step / 20)
                line[f"{head}_loss"] = None if is_idle else 10.0**k * fall * rng.uniform(0.9, 1.1)
                line[f"{head}_norm"] = None if is_idle else 10.0**-k
                line[f"{head}_share"] = None if is_idle else 1 / 3
                line[f"{head}_coefficient"] = None if is_idle else 1.0 + k * 0.01
                line[f"{head}_update_cosine"] = None if is_idle else 0.5
            line |= {
                "price_size_cosine": None if step % 2 == 0 else -0.25,
                "price_kind_cosine": 0.75,
                "size_kind_cosine": None,
            }
            file.write(json.dumps(line) + "\n")
            if step % 20 == 0:
                file.write(json.dumps({"step": step, "epoch": step // 20, "val_price_loss": 0.5}) + "\n")
        file.write('{"step": 61, "epo')  # a line that a crash cut off
    return path


def texts_of(figure):
    """All texts, without the labels of ticks outside of the axes."""
    figure.draw_without_rendering()
    legends = [axis.get_legend() for axis in figure.axes if axis.get_legend() is not None]
    found = [
        text for each in (*(axis.texts for axis in figure.axes), *(each.get_texts() for each in legends)) for text in each
    ]
    ticks = []
    for axis in figure.axes:
        sides = ((axis.get_xlim(), axis.get_xticklabels()), (axis.get_ylim(), axis.get_yticklabels()))
        for place, (limits, labels) in enumerate(sides):
            ticks += [text for text in labels if min(limits) <= text.get_position()[place] <= max(limits)]
    return [*found, *(text for text in ticks if text.get_text() and text.get_window_extent().overlaps(figure.bbox))]


def test_a_run_is_read_without_skipped_updates_and_what_was_cut_off(ledger):
    run = plots.read(ledger)
    assert run.heads == HEADS and len(run.steps) == 59 and 7 not in run.steps
    assert np.isnan(run.values["size_norm"][run.steps % 2 == 0]).all()
    assert run.validation_steps.tolist() == [20, 40, 60] and run.validation["val_price_loss"].tolist() == [0.5] * 3


def test_heads_that_came_and_went_are_drawn(tmp_path):
    path = tmp_path / "run.jsonl"
    first, last = ({f"{head}_loss": 1.0 / step for head in heads} for step, heads in ((1, "ab"), (2, "bc")))
    lines = [{"step": 1, "applied": True, **first}, {"step": 2, "applied": True, **last, "b_c_cosine": 0.5}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    run = plots.read(path)
    assert run.heads == ("a", "b", "c") and np.isnan(run.values["c_loss"][0]) and run.values["c_loss"][1] == 0.5
    assert {"a", "b", "c"} <= {text.get_text().split(":")[0] for text in texts_of(plots.losses(run))}
    assert "+0.50" in {text.get_text() for text in texts_of(plots.cosines(run))}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["losses", "norms", "shares", "weights", "cosines"])
def test_every_head_is_named_where_it_is_drawn_and_nothing_overlaps(ledger, name):
    figure = getattr(plots, name)(ledger)
    texts = texts_of(figure)
    shown = " ".join(text.get_text() for text in texts)
    assert all(head in shown for head in HEADS)
    assert figure.axes[0].get_title(loc="left")
    boxes = [text.get_window_extent() for text in texts]
    assert [(i, j) for i in range(len(boxes)) for j in range(i) if boxes[i].overlaps(boxes[j])] == []
    assert figure.bbox.y0 <= min(box.y0 for box in boxes) and max(box.x1 for box in boxes) <= figure.bbox.x1
    assert small_letters(figure) == []


@pytest.mark.thorough
def test_command_draws_what_a_run_has(ledger, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["multihead", "plot", str(ledger), "--output", str(tmp_path)])
    runpy.run_module("multihead", run_name="__main__")  # as `python -m multihead`
    printed = capsys.readouterr().out.split()
    assert printed == [str(tmp_path / f"{name}.png") for name in ("losses", "norms", "shares", "weights", "cosines")]
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in ("losses", "cosines"))
    lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()[:-1]]
    few = tmp_path / "few.jsonl"
    plain = [{k: v for k, v in line.items() if not k.endswith(("cosine", "coefficient"))} for line in lines]
    few.write_text("".join(json.dumps(line) + "\n" for line in plain), encoding="utf-8")
    assert [path.name for path in plots.all_of(few, tmp_path / "few")] == ["losses.png", "norms.png", "shares.png"]
    monkeypatch.setattr(sys, "argv", ["multihead", "plot", str(tmp_path / "absent.jsonl")])
    with pytest.raises(SystemExit, match="python -m multihead plot: .*absent.jsonl"):
        runpy.run_module("multihead", run_name="__main__")


def test_what_a_run_does_not_have_is_explained(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 1, "epoch": 0, "applied": true, "loss": 1.0, "a_loss": 1.0, "a_norm": 1.0, "a_share": 1.0}\n')
    for picture, message in (
        (plots.cosines, '`run` must have cosines. Received: a run without.*telemetry="full"'),
        (plots.weights, "`run` must have weights that change"),
    ):
        with pytest.raises(ValueError, match=message):
            picture(path)
    path.write_text("")
    with pytest.raises(
        ValueError, match="`path` must have applied updates with the losses of heads. Received: 'run', with no update"
    ):
        plots.read(path)


# Histories and several runs


def history(values, epochs=range(4)):
    found = keras.callbacks.History()
    found.history, found.epoch = {name: list(numbers) for name, numbers in values.items()}, list(epochs)
    return found


FITTED = {
    "loss": [9.0, 5.0, 4.0, 4.0],
    **{f"{head}_loss": [8.0, 4.0, 2.0, 1.0] for head in HEADS},
    **{f"{head}_norm": [1.0] * 4 for head in HEADS},
    **{f"{head}_share": [1 / 3] * 4 for head in HEADS},
    "price_size_cosine": [-0.5, -0.25, 0.0, 0.25],
    "val_price_loss": [6.0, 4.0],
}


def test_a_history_is_drawn_by_epoch_without_smoothing():
    figure = plots.losses(history(FITTED))
    assert figure.axes[0].get_xlabel() == "epochs"
    of_price = figure.axes[0].lines[0]
    assert of_price.get_xdata().tolist() == [1, 2, 3, 4] and of_price.get_ydata().tolist() == [1.0, 0.5, 0.25, 0.125]
    validation = figure.axes[0].lines[1]  # in the last two epochs
    assert validation.get_xdata().tolist() == [3, 4] and validation.get_ydata().tolist() == [0.75, 0.5]
    assert "price: 12.5% of 8" in {text.get_text() for text in texts_of(figure)}


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (
            history({"loss": [1.0] * 4}),
            ValueError,
            "`run` must have applied updates with the losses of heads. Received: 'history', with loss",
        ),
        (history({}, []), ValueError, "Received: 'history', with no update"),
        ([], ValueError, "`run` must be at least one run. Received: an empty list"),
        (3, TypeError, "`run` must be the file of a ledger, what `plots.read` returns, Keras's `History`"),
    ],
)
def test_what_is_no_run(run, error, message):
    with pytest.raises(error, match=message):
        plots.losses(run)
