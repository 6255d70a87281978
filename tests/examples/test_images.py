"""The digits and their three targets, and the program in every way to train."""

from __future__ import annotations

import importlib.util

import keras
import numpy as np
import pytest

from examples import images as program

pytestmark = pytest.mark.programs


def few(seed):
    return program.Split(*((x[:20], {name: labels[:20] for name, labels in y.items()}) for x, y in program.digits(seed)))


def test_the_digits_and_their_targets():
    data = program.digits(0)
    (x, y), (_, of_test) = data.train, data.test
    assert x.shape == (1200, 32, 32, 3) and x.min() == -1 and x.max() == 1
    assert (y["parity"] == -1).mean() == pytest.approx(0.6, abs=0.04) and not (of_test["parity"] == -1).any()
    known = y["parity"] != -1
    assert (y["parity"][known] == y["digit"][known] % 2).all()
    pixels = (x[:, ::4, ::4, 0] + 1) * 8
    np.testing.assert_allclose(y["sum"][:, 0], pixels.sum(axis=(1, 2)))
    assert 280 < y["sum"].mean() < 340  # raw units
    assert not np.array_equal(x, program.digits(1).train[0])


def test_scores_of_exact_predictions_and_of_means():
    x, y = few(0).test

    class Exact:
        def predict(self, x, **options):
            return {"digit": np.eye(10)[y["digit"]], "parity": np.eye(2)[y["parity"]], "sum": y["sum"]}

    assert program.scores(Exact(), (x, y)) == {"digit": 1.0, "parity": 1.0, "sum": 1.0}
    Exact.predict = lambda self, x, **options: {**exact, "sum": np.full_like(y["sum"], y["sum"].mean())}
    exact = {"digit": np.eye(10)[y["digit"]], "parity": np.eye(2)[1 - y["parity"]]}
    found = program.scores(Exact(), (x, y))
    assert found["parity"] == 0 and found["sum"] == pytest.approx(0, abs=1e-5)


def test_the_rate_decays_to_zero_and_diagnose_is_followed(eager_updates):
    trainer, told = program.train(None, few(0)._replace(train=tuple_of(program.digits(0).train, 60)), 0, 1)
    assert told.startswith("finds: ") and "units" in told
    rate = keras.optimizers.schedules.deserialize(trainer.optimizer.get_config()["learning_rate"])
    updates = int(trainer.update_count)
    assert updates == 1 and float(rate(0)) > 1e-3 and float(rate(updates)) == pytest.approx(0, abs=1e-9)
    assert trainer.heads["sum"].target_scaling is not None and "target_scaling={'sum': 'standardize'}" in told


def tuple_of(part, number):
    x, y = part
    return x[:number], {name: labels[:number] for name, labels in y.items()}


def test_the_best_balancer_is_that_of_the_validation_data(monkeypatch):
    good = {"IMTLG": 0.4, "FairGrad": 0.9}

    def scores(trainer, part):
        value = good.get(trainer.get("balancer"), 0.5)
        return dict.fromkeys(program.SCORES, value if part == "validation" else 1 - value)

    monkeypatch.setattr(program, "train", lambda way, *_: (dict(way or {}), "finds: units" if way is None else ""))
    monkeypatch.setattr(program, "scores", scores)
    found, told = program.compare(program.Split("train", "validation", "test"), 0, 1, lambda: None)
    assert list(found) == ["plain sum", "what diagnose suggests", "best balancer: FairGrad", "Uncertainty"]
    assert found["best balancer: FairGrad"]["digit"] == pytest.approx(0.1)
    assert told == [
        "diagnose finds: units",
        "the balancers' means on the validation data: IMTLG 0.400, FairGrad 0.900",
    ]


def test_without_scikit_learn_it_says_so(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    assert program.main([]) == 2
    assert "needs sklearn. Install the extra: pip install -e '.[examples,benchmarks]'" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_program(eager_updates, tmp_path, capsys):
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(way in said for way in ("plain sum", "what diagnose suggests", "best balancer: IMTLG", "Uncertainty"))
    assert (tmp_path / "images.png").read_bytes().startswith(b"\x89PNG")
