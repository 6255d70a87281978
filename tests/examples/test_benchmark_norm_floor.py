"""The benchmark of the floor: its networks are those of the trainer, it runs, and the page shows what its lines say."""

from __future__ import annotations

import functools
import json
import math

import keras
import numpy as np
import pytest

from benchmarks import _further_problems, _problems, norm_floor
from multihead import MultiHeadTrainer, balancing
from tests.helpers.sources import ROOT

PAGE = (ROOT / "docs" / "concepts" / "pace.md").read_text(encoding="utf-8")
BALANCERS = {
    "EqualNorms": balancing.EqualNorms,
    "floor 0.2": lambda: balancing.NormFloor(0.2),
}


OPTIMIZERS = {
    "Adam": keras.optimizers.Adam,
    "AdamW": keras.optimizers.AdamW,
    "SGD": functools.partial(keras.optimizers.SGD, momentum=0.9),
}


@pytest.mark.programs
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_networks_at_once_are_trained_as_the_trainer_does(optimizer):
    problem, seeds, updates = _problems.summed(1), [1], 6
    networks = norm_floor.Networks([problem], seeds, {variant: norm_floor.VARIANTS[variant] for variant in BALANCERS})
    orders = norm_floor.orders_of(problem, seeds, updates)
    first = problem.rate * np.array([1.0, 0.3])
    networks.train(orders, optimizer, first)
    for i, balancer in enumerate(BALANCERS.values()):
        encoder = keras.Sequential([keras.layers.Dense(n, activation="relu") for n in problem.encoder])
        trainer = MultiHeadTrainer(encoder)
        for name, head in problem.heads.items():
            is_class = head.kind == _problems.CLASSES
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if is_class else "mse"
            trainer.add_head(name, keras.layers.Dense(head.outputs), loss, weight=head.weight)
        rate = keras.optimizers.schedules.CosineDecay(first[i], updates)
        trainer.compile(OPTIMIZERS[optimizer](rate), balancer=balancer(), telemetry=None, run_eagerly=True)
        rows = orders[:, 0].reshape(-1)
        x, y = problem.inputs[rows].astype("float32"), {name: head.labels[rows] for name, head in problem.heads.items()}
        trainer.diagnose(x[:2], {name: labels[:2] for name, labels in y.items()})  # creates the variables
        start = [values[0].reshape(values.shape[1:]) for values in networks.start]
        trainer.encoder.set_weights([values.reshape(w.shape) for values, w in zip(start, trainer.encoder.get_weights())])
        for k, head in enumerate(trainer.heads.values()):
            kernel, bias = start[networks.num_encoder + 2 * k :][:2]
            head.module.set_weights([kernel, bias[0]])
        trainer.fit(x, y, batch_size=norm_floor.BATCH, shuffle=False, verbose=0)
        for one, other in zip(trainer.encoder.get_weights(), networks.variables):
            np.testing.assert_allclose(one, other.numpy()[i].reshape(one.shape), rtol=2e-3, atol=2e-4)


@pytest.mark.programs
def test_the_benchmark_runs_and_repeats_nothing(tmp_path, capsys):
    output = tmp_path / "lines.jsonl"
    options = ["--problems", "few_labels", "--seeds", "2", "--quick", "--output", str(output)]
    norm_floor.main(options)
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [line["variant"] for line in lines] == list(norm_floor.VARIANTS)
    norm_floor.main(options)
    assert len(output.read_text(encoding="utf-8").splitlines()) == len(lines)
    assert "| `few_labels` | few |" in capsys.readouterr().out


def test_the_page_shows_what_the_lines_say():
    lines = norm_floor.read(norm_floor.LINES)
    assert {line["problem"] for line in lines} == set(norm_floor.PROBLEMS)
    assert norm_floor.summary(lines) in PAGE
    for group in (_problems.UNSEEN, _further_problems.FURTHER):
        assert norm_floor.by_head(lines, [make.__name__ for make in group]) in PAGE


@pytest.mark.parametrize("make", list(_further_problems.FURTHER[6:]), ids=lambda make: make.__name__)
def test_made_problems_are_those_of_their_seed(make):
    one, again, other = make(0), make(0), make(1)
    assert list(one.heads) == list(again.heads) and len(one.inputs) > one.train
    assert all(len(head.labels) == len(one.inputs) for head in one.heads.values())
    np.testing.assert_array_equal(one.inputs, again.inputs)
    assert (one.inputs != other.inputs).any()


def test_a_missing_file_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_further_problems, "DATA", tmp_path)
    _further_problems._sentences.cache_clear()
    with pytest.raises(SystemExit):
        norm_floor.main(["--problems", "slots", "--seeds", "2", "--output", str(tmp_path / "lines.jsonl")])
    assert "restaurants_train.csv.gz" in capsys.readouterr().err


def test_better_and_hurt_are_beyond_the_interval_of_paired_differences():
    def line(variant, **heads):
        return {"problem": "wine", "variant": variant, "heads": heads}

    plain = line("plain sum", a=[0.1, 0.5, 0.9], b=[0.5, 0.5, 0.5], c=[0.5, 0.5, 0.5], d=[None, 0.5, 0.5])
    other = line("floor 1", a=[0.2, 0.6, 1.0], b=[0.4, 0.4, 0.41], c=[0.4, 0.5, 0.6], d=[0.5, 0.5, 0.5])
    found = norm_floor.counts([plain, other], ["wine"], "floor 1")
    assert (found["heads"], found["better"], found["hurt"]) == (3, 1, 1)
    assert found["worst"] == pytest.approx(-0.0967, abs=1e-4)
    half = norm_floor.differences([plain, other], "wine", "floor 1")[2][3]
    assert half == pytest.approx(4.303 * 0.1 / math.sqrt(3), rel=1e-3)
