"""Options for several machines that cannot be used, and the recipes of the page."""

from __future__ import annotations

import re
import subprocess
from argparse import Namespace

import pytest
import tensorflow as tf
import yaml

from examples import _cluster, _replicas
from examples._command_line import InputError
from examples.seq2seq_price import command
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs

PAGE = (ROOT / "docs" / "howto" / "distributing.md").read_text(encoding="utf-8")
OPTIONS = Namespace(strategy="multi-worker", port=8888)
STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]"}
STEP["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)"


@pytest.fixture
def environment(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_GPUS_ON_NODE", *STEP):
        monkeypatch.delenv(name, raising=False)
    return lambda variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray-workers", "2"], "--ray-workers requires --strategy multi-worker. Received: --strategy none."),
        (["--shard", "file"], "--shard file requires --train with a pattern for several tables, in quotes. Received: none."),
        (["--shard", "file", "--train", "a", "--dev", "a"], "in quotes. Received: a."),
        (["--strategy", "mirrored", "--load", "x", "--predict", "y"], "--strategy is for training."),
        (["--strategy", "several"], "argument --strategy: invalid choice: 'several'"),
        (["--port", "70000"], "argument --port: must be a whole number of at least 1 and below 65536. Received: '70000'."),
    ],
)
def test_options_that_cannot_be_used(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "`--strategy multi-worker` must find the workers' addresses. Received: neither TF_CONFIG nor SLURM_JOB_ID"),
        ({"TF_CONFIG": "{"}, "`TF_CONFIG` must be JSON with the addresses of all workers .* Received: '{': JSONDecodeError"),
        ({"TF_CONFIG": '{"cluster": {"worker": []}}'}, "KeyError 'task'"),
        ({"TF_CONFIG": '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}'}, "tasks of type 'ps'"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'}, "IndexError"),
        (
            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"},
            "must run in a step of SLURM. Received: a job without SLURM_STEP_NUM_TASKS, ",
        ),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "5"}, "Received: .*Requested 5 tasks but only 4 were assigned. Ask for the same"),
    ],
)
def test_clusters_that_cannot_be_used(variables, message, environment):
    environment(variables)
    with pytest.raises(InputError, match=message):
        _replicas.worker_of(OPTIONS)


@pytest.mark.parametrize("gpus", [0, 4])
def test_slurm_gives_the_addresses(gpus, environment, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # which TensorFlow's resolver sets
    environment({**STEP, **({"SLURM_GPUS_ON_NODE": str(gpus)} if gpus else {})})
    resolver = _replicas._of_slurm(9000)
    assert resolver.cluster_spec().as_dict() == {"worker": ["node1:9000", "node1:9001", "node2:9000", "node2:9001"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)
    assert resolver.num_accelerators() == ({"GPU": 2} if gpus else {})


def test_ray_that_cannot_be_imported_is_named(monkeypatch):
    def fail(name):
        raise ImportError("Can't import ray.train") from ImportError("pyarrow requires NumPy 2.0 or newer, found 1.26.4")

    monkeypatch.setattr(_cluster.importlib, "import_module", fail)
    with pytest.raises(
        InputError, match=r"needs Ray Train. Received: pyarrow requires NumPy 2.0 .* pip install -e '.\[ray\]'"
    ):
        _cluster.run_by_ray(print, {}, 2, 0)


def test_files_of_a_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ba":
        (tmp_path / f"{name}.csv").write_text("")
    assert _cluster.files_of("*.csv") == ["a.csv", "b.csv"]
    assert _cluster.files_of("none.csv") == ["none.csv"]
    with pytest.raises(InputError, match=r"`\*.tsv` must match a file. Received: a pattern that no file matches."):
        _cluster.files_of("*.tsv")
    _cluster.check_files(2, 2, 16)
    with pytest.raises(InputError, match="`--shard file` needs a file for each worker, .* Received: 2 files with 3 workers"):
        _cluster.check_files(2, 3, 16)


def test_batches_of_files_do_not_depend_on_the_number_of_workers():
    def of_file(file):
        rows = tf.data.Dataset.range(1, 3 + file).map(lambda row: (tf.fill([row], file), {"label": row}))
        batches = rows.padded_batch(2)
        return batches, int(batches.cardinality())

    def epoch(worker):
        batches, steps = _replicas.batches_of_files(worker, 3, of_file)
        assert steps == 2 == int(batches.cardinality())
        return [labels["label"].numpy().tolist() for _, labels in batches]

    alone = epoch(_replicas.Worker())
    assert alone == [[1, 2, 1, 2, 1, 2], [3, 3, 4]]
    found = []
    for index in range(2):
        worker = _replicas.Worker(index=index, number=2)
        object.__setattr__(worker, "of_each", lambda value: [2.0, 2.0])
        found.append(epoch(worker))
    assert [sorted(one + other) for one, other in zip(*found)] == [sorted(labels) for labels in alone]


def test_parts_of_a_batch_are_all_of_it():
    batch = (tf.range(7), {"label": tf.range(7, 14)})
    parts = [_replicas.part(batch, index, 3) for index in range(3)]
    assert [part[0].numpy().tolist() for part in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [len(_replicas.part(batch, index, 8)[1]["label"]) for index in range(8)] == [0, *[1] * 7]


def blocks(language):
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_recipes_can_be_read(tmp_path):
    (job,) = (yaml.safe_load(block) for block in blocks("yaml"))
    assert job["kind"] == "TFJob" and job["apiVersion"] == "kubeflow.org/v1"
    ((kind, workers),) = job["spec"]["tfReplicaSpecs"].items()
    (container,) = workers["template"]["spec"]["containers"]
    assert (kind, container["name"], workers["restartPolicy"]) == ("Worker", "tensorflow", "OnFailure")
    commands = [container["command"]]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in workers["template"]["spec"]["volumes"]}
    for block in blocks("bash"):
        done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        commands += [text.split() for text in re.findall(r"python -m examples.*", block.replace("\\\n", " "))]
    assert len(commands) == 3
    for words in commands:
        options = command.parse(words[words.index("examples.seq2seq_price") + 1 :])
        assert options.strategy == "multi-worker" and options.output == "/shared/run"
    sbatch = next(block for block in blocks("bash") if "#SBATCH" in block)
    assert sbatch.startswith("#!/bin/bash\n#SBATCH ")


@pytest.mark.parametrize(("fails_at", "is_over"), [(2, True), (1, False)])
def test_a_worker_that_leaves_last_need_not_hear_from_the_others_again(fails_at, is_over, monkeypatch):
    calls = []

    def totals(self, values):
        calls.append(values)
        if len(calls) == fails_at:
            raise tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")

    monkeypatch.setattr(_replicas.Worker, "totals", totals)
    if is_over:
        _replicas.Worker(number=2).leave()
    else:
        with pytest.raises(tf.errors.UnavailableError, match="Socket closed"):
            _replicas.Worker(number=2).leave()
    assert len(calls) == fails_at
