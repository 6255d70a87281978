"""What the programs share: options, one line for whatever is missing, and results on screen and in a folder."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from examples import _shared, _style

pytestmark = pytest.mark.programs


def run(arguments, body=lambda session: None, needs=("matplotlib", "rich")):
    return _shared.run_program("trial", "Is this a trial?", body, arguments, needs=needs)


@pytest.mark.parametrize("module", ["rich", "matplotlib", "gymnasium", "sklearn"])
def test_a_missing_extra_is_named(module, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    assert run([], needs=(module,)) == 2
    extras = "examples,benchmarks" if module == "sklearn" else "examples"
    assert capsys.readouterr().err == (
        f"examples.trial: error: needs {module}. Install the extra: pip install -e '.[{extras}]'\n"
    )


def test_a_session(tmp_path, capsys):
    seen = []

    def body(session):
        seen.append((session.seed, session.quick, session.folder, np.random.random()))
        with session.progress("working", 3) as advance:
            advance()
        session.table("figures", ["way", "error"], [["this one", "1e-7"], ["[that] one", "0.1"]])
        figure, axis = _style.new_figure(1, 1, 2)
        axis.plot([1, 2])
        assert session.save(figure) == tmp_path / "a" / "trial.png"

    for _ in range(2):
        assert run(["--output", str(tmp_path / "a"), "--seed", "5", "--quick"], body) == 0
    assert seen[0] == seen[1] and seen[0][:3] == (5, True, tmp_path / "a")
    assert (tmp_path / "a" / "trial.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    for text in ("figures", "this one", "1e-7", "[that] one", "trial.png"):
        assert text in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "argument --seed: must be a whole number of at least 0 and below 2147483648. Received: '-1'."),
        (["--seed", str(2**31)], "Received: '2147483648'."),
        (["--seeds", "1"], "unrecognized arguments: --seeds 1"),
    ],
)
def test_options_that_cannot_be_used(arguments, message, capsys):
    with pytest.raises(SystemExit) as left:
        run(arguments)
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.startswith("examples.trial: error: ") and message in error and error.count("\n") == 1


def test_an_output_that_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(["--output", str(tmp_path / "file")]) == 2
    assert "`--output` must be a writable folder. Received: " in capsys.readouterr().err
