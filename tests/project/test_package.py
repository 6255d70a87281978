"""The package as it is built: what a wheel holds, which versions it takes, which names it offers."""

from __future__ import annotations

import configparser
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import multihead
from multihead._ground import compatibility
from tests.helpers.sources import ROOT, sources


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


# What is built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy of the checkout on a Python where importing TensorFlow, Keras or NumPy fails."""
    folder = tmp_path_factory.mktemp("build")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("multihead", "models", "examples"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in ("tensorflow", "keras", "numpy"):
        (folder / "absent").mkdir(exist_ok=True)
        (folder / "absent" / f"{name}.py").write_text("raise ImportError('a build must not need this')")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(checkout)],
        env={**os.environ, "PYTHONPATH": str(folder / "absent")},
        check=True,
        timeout=300,
    )
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed into a folder of its own; what it needs comes from where this runs."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel.filename)]
    subprocess.run(command, check=True, timeout=300)
    return folder


@pytest.mark.programs
def test_wheel_has_one_top_level_name(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"multihead"}


@pytest.mark.programs
def test_wheel_holds_every_module_types_and_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {path.relative_to(ROOT).as_posix() for path in sources("multihead")} <= names
    assert {f"multihead/{path.relative_to(ROOT).as_posix()}" for path in sources("models")} <= names
    assert "multihead/py.typed" in names
    assert any(re.fullmatch(r".*\.dist-info/(licenses/)?LICENSE", name) for name in names)


PROGRAM = """
import pathlib, sys
import keras
import numpy as np
import tensorflow as tf
import multihead
from multihead import MultiHeadTrainer, losses
assert not any(name.startswith("multihead.models") for name in sys.modules), "the core imports the models"
from multihead import models
from multihead.models import PriceClassifier, Seq2SeqDecoder, Seq2SeqEncoder

for module in (multihead, models):
    assert pathlib.Path(module.__file__).is_relative_to(sys.argv[1]), module.__file__
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # as in conftest.py, and for its reason
keras.utils.set_random_seed(0)
tokens = np.array([[4, 5, 6, 3], [7, 3, 0, 0]] * 4)
trainer = MultiHeadTrainer(Seq2SeqEncoder(9, 4, 8, cell="gru"))
decoder = Seq2SeqDecoder(9, 4, 8, cell="gru", maximum_length=4)
trainer.add_head("reply", decoder, losses.SequenceCrossentropy(), teacher_forcing=True)
trainer.add_head("price", PriceClassifier(2, hidden_units=8), "sparse_categorical_crossentropy", metrics=["accuracy"])
trainer.compile(keras.optimizers.Adam(0.02))
history = trainer.fit(tokens, {"reply": tokens, "price": np.array([0, 1] * 4)}, batch_size=8, epochs=60, verbose=0).history
assert history["price_accuracy"][-1] == 1.0, history["price_accuracy"]
assert np.array_equal(trainer.predict(tokens, verbose=0)["reply"], tokens)
"""


@pytest.mark.programs
@pytest.mark.thorough
def test_installed_wheel_trains_and_decodes(installed: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(installed)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        timeout=300,
    )


@pytest.mark.programs
def test_wheel_states_version_and_needs_only_tensorflow_keras_and_numpy(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    header = wheel.read(name).decode().split("\n\n")[0]
    requirements = [Requirement(text) for text in re.findall(r"^Requires-Dist: (.*)$", header, re.MULTILINE)]
    assert {r.name for r in requirements if "extra" not in str(r.marker)} == {"keras", "numpy", "tensorflow"}
    assert re.search(rf"^Version: {re.escape(multihead.__version__)}$", header, re.MULTILINE)


def test_changelog_and_citation_are_of_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert first and first.group(1) == citation["version"] == multihead.__version__


def test_release_refuses_a_tag_that_is_not_the_version() -> None:
    command = ["bash", str(ROOT / ".ci" / "release"), "v999.0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert re.search(r"The tag must be v\S+, the version in multihead/_version\.py\. Received: v999\.0\.", result.stderr)


# Which versions


def tensorflow_requirement() -> SpecifierSet:
    lines = setup_cfg()["options"]["install_requires"].split()
    return next(Requirement(line).specifier for line in lines if line.startswith("tensorflow"))


@pytest.mark.parametrize("version", "2.14.1 2.15.0 2.15.1 2.16.1 2.16.2 2.20.0 2.21.0 3.0.0".split())
def test_installer_and_import_agree_on_tensorflow(version: str) -> None:
    assert (version in tensorflow_requirement()) == (compatibility.numbers(version) >= compatibility.OLDEST_TENSORFLOW)


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")])
def test_addons_extra_is_whole_or_empty(python: str, platform: tuple[str, str]) -> None:
    lines = setup_cfg()["options.extras_require"]["addons"].strip().splitlines()
    environment = {"python_version": python, "sys_platform": platform[0], "platform_machine": platform[1]}
    chosen = {r.name for r in map(Requirement, lines) if r.marker and r.marker.evaluate(environment)}
    has_wheels = python in ("3.10", "3.11") and platform in (("linux", "x86_64"), ("darwin", "arm64"))
    assert chosen == ({"tensorflow-addons", "tensorflow", "numpy"} if has_wheels else set())


@pytest.mark.parametrize(
    ("tensorflow", "keras", "backend"),
    [("2.15.1", "2.15.0", "tensorflow"), ("2.15.1", "2.15.0", "jax"), ("2.16.2", "3.12.0", "tensorflow"),
     ("2.21.0", "3.15.1", "tensorflow"), ("2.22.0-dev20260101", "3.16.0.dev1", "tensorflow")],
)  # fmt: skip
def test_usable_stacks_pass(tensorflow: str, keras: str, backend: str) -> None:
    assert compatibility.problem(tensorflow, keras, backend) is None


@pytest.mark.parametrize(
    ("tensorflow", "keras", "backend", "message"),
    [
        (None, None, "tensorflow", r"needs TensorFlow, which is not installed: run `pip install .*tensorflow`\.$"),
        ("2.14.1", "2.14.0", "tensorflow", r"needs TensorFlow 2\.15\.1 or newer, but TensorFlow 2\.14\.1 is installed"),
        ("2.16.2", "3.3.0", "tensorflow", r"needs Keras 3\.12 or newer, but Keras 3\.3\.0 is installed"),
        ("2.21.0", None, "tensorflow", r"multihead on TensorFlow 2\.21\.0 needs Keras, which is not installed: run"),
        ("2.15.1", "3.12.0", "tensorflow", r"needs Keras 2\.15, but Keras 3\.12\.0 is installed: run `pip install"),
        ("2.21.0", "2.15.0", "tensorflow", r"needs Keras 3\.12 or newer, but Keras 2\.15\.0 is installed: run"),
        ("2.21.0", "3.15.1", "jax", r"the backend is 'jax': set the environment variable KERAS_BACKEND=tensorflow"),
    ],
)
def test_unusable_stacks_are_explained(tensorflow: str | None, keras: str | None, backend: str, message: str) -> None:
    text = compatibility.problem(tensorflow, keras, backend)
    assert text is not None and re.search(message, text)
    assert "\n" not in text and text.endswith(".")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "raise ModuleNotFoundError(\"No module named 'tensorflow'\", name='tensorflow')",
            "multihead needs TensorFlow, which is not installed",
        ),
        ("__version__ = '2.9.0'", r"multihead needs TensorFlow 2\.15\.1 or newer, but TensorFlow 2\.9\.0"),
        (
            "raise ImportError('numpy.core.umath failed to import')",
            r"TensorFlow is installed, but importing it fails \(numpy.core.umath",
        ),
    ],
    ids=["missing", "old", "broken"],
)
def test_import_explains_a_tensorflow_that_cannot_be_used(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(source)
    result = subprocess.run(
        [sys.executable, "-c", "import multihead"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1
    assert re.match(f"ImportError: {message}", result.stderr.strip().splitlines()[-1])


def test_what_is_imported_at_its_first_use_is_known_and_nothing_else() -> None:
    assert set(multihead.__all__) <= set(dir(multihead))
    with pytest.raises(AttributeError, match="module 'multihead' has no attribute 'compares'"):
        multihead.compares  # noqa: B018


def test_public_names_exist_and_nothing_else_is_public() -> None:
    for name in multihead.__all__:
        assert hasattr(multihead, name)
    modules = {module.name for module in pkgutil.iter_modules(multihead.__path__) if not module.name.startswith("_")}
    assert modules <= set(multihead.__all__)
    public = {name for name in vars(multihead) if not name.startswith("_")}
    submodules = {path.stem for path in (ROOT / "multihead").iterdir()} | {"models"}
    assert public - submodules <= set(multihead.__all__) | {"annotations"}
