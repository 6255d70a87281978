"""How long the balancers take to turn inner products into coefficients, beside TorchJD and LibMTL where installed.

    python -m benchmarks.balancers --help

All get the same random Gramians of conflicting gradients. Ours run inside a compiled step, as a graph and by XLA: a loop
over the Gramians, divided by their number. The peers' run as they are, on the CPU with one thread; a method that wants
gradients gets a square root of the Gramian, as many columns as heads. A figure is the best of several rounds in which
all take turns. "fails" is a peer that raises on these inputs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
import types
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from multihead import balancing

METHODS = (
    "Sum EqualNorms NormBudget PCGrad GradVac UPGrad DualProj MGDA CAGrad NashMTL FairGrad IMTLG ConFIG AlignedMTL SDMGrad"
).split()


def gramians(num_heads: int, count: int) -> list[np.ndarray]:
    """Gramians of gradients that conflict, of lengths from 0.1 to 10."""
    random = np.random.default_rng(num_heads)
    found = []
    for _ in range(count):
        rows = random.normal(size=(num_heads, 64)) + random.normal(size=(num_heads, 1)) * random.normal(size=64)
        rows *= 10.0 ** random.uniform(-1, 1, size=(num_heads, 1))
        found.append((rows @ rows.T).astype(np.float32))
    return found


def ours(name: str, inputs: list[np.ndarray], *, xla: bool) -> Callable[[], object]:
    """A call of one of our methods on all Gramians, compiled."""
    balancer = balancing.NormBudget({0: 0.2}) if name == "NormBudget" else balancing.get(name)
    balancer.build((len(inputs[0]), None))
    stacked = tf.constant(np.stack(inputs))

    @tf.function(jit_compile=xla)
    def run(gramians: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(balancer.coefficients, gramians, parallel_iterations=1)

    return lambda: run(stacked).numpy()


def roots(inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Gradients with these inner products."""
    return [np.linalg.cholesky(each + 1e-6 * np.eye(len(each))).astype(np.float32) for each in inputs]


def torchjd(name: str, inputs: list[np.ndarray]) -> Callable[[], object] | None:
    """A call of TorchJD's method of the same name on all Gramians, or None if it has none."""
    torch, aggregation = importlib.import_module("torch"), importlib.import_module("torchjd.aggregation")
    torch.set_num_threads(1)
    num_heads = len(inputs[0])
    arguments = {"CAGrad": {"c": 0.4}, "FairGrad": {"alpha": 2.0}, "NashMTL": {"n_tasks": num_heads}}.get(name, {})
    by_gramian = hasattr(aggregation, f"{name}Weighting")
    method = getattr(aggregation, f"{name}Weighting", getattr(aggregation, name, None))
    if method is None:
        return None
    made, tensors = method(**arguments), [torch.tensor(each) for each in (inputs if by_gramian else roots(inputs))]

    def run() -> object:
        with torch.no_grad():
            return [made(each) for each in tensors]

    return run


LIBMTL = {"IMTLG": "IMTL", "NashMTL": "Nash_MTL", "AlignedMTL": "Aligned_MTL"}
LIBMTL_OPTIONS = {
    "calpha": 0.4, "rescale": 0, "mgda_gn": "none", "GradVac_beta": 0.5, "beta": 0.5, "GradVac_group_type": 0,
    "update_weights_every": 1, "optim_niter": 20, "max_norm": 1.0, "FairGrad_alpha": 2.0,
    "UPGrad_norm_eps": 1e-4, "UPGrad_reg_eps": 1e-4,
}  # fmt: skip


def libmtl(name: str, inputs: list[np.ndarray]) -> Callable[[], object] | None:
    """A call of LibMTL's method of the same name on all Gramians, or None if it has none.

    Its methods compute gradients, solve, and set gradients in one go; here the first and the last step do nothing.
    """
    if "LibMTL" not in sys.modules:  # its own __init__ imports models that need an old torchvision
        package = types.ModuleType("LibMTL")
        package.__path__ = list(importlib.util.find_spec("LibMTL").submodule_search_locations)
        sys.modules["LibMTL"] = package
    torch, weighting = importlib.import_module("torch"), importlib.import_module("LibMTL.weighting")
    method = getattr(weighting, LIBMTL.get(name, name), None)
    if method is None:
        return None
    num_heads, current = len(inputs[0]), [torch.zeros(1)]
    methods = {
        "_compute_grad_dim": lambda self: None,
        "_compute_grad": lambda self, *_, **__: current[0].clone(),
        "_get_grads": lambda self, *_, **__: current[0].clone(),
        "_reset_grad": lambda self, *_: None,
        "_backward_new_grads": lambda self, *_, **__: None,
        "get_share_params": lambda self: [],
    }
    made = type(f"Timed{name}", (method,), methods)()
    made.task_num, made.device, made.rep_grad = num_heads, torch.device("cpu"), False
    made.task_name, made.grad_dim, made.grad_index = list(range(num_heads)), num_heads, [num_heads]
    made.epoch, made.train_loss_buffer = 1, np.ones((num_heads, 2))
    made.init_param()
    tensors, losses = [torch.tensor(each) for each in roots(inputs)], torch.ones(num_heads)

    def run() -> None:
        for each in tensors:
            current[0] = each
            made.backward(losses, **LIBMTL_OPTIONS)

    return run


def best(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float | None]:
    """The shortest time of each, the runs taking turns; a first call of each is not counted, None if it fails."""
    seconds: dict[str, float | None] = {}
    for name, run in runs.items():
        try:
            run()
            seconds[name] = float("inf")
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            if name in ("graph", "xla"):
                raise
            seconds[name] = None
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            if seconds[name] is not None:
                run()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.balancers",
        description="Microseconds from inner products to coefficients, and the peers' time over ours.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--heads", type=int, nargs="+", default=[2, 4, 8, 16], help="numbers of heads")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, help="methods to time")
    parser.add_argument("--rounds", type=int, default=10, help="rounds per method")
    options = parser.parse_args(arguments)
    available = {"TorchJD": torchjd, "LibMTL": libmtl}
    packages = {"TorchJD": "torchjd", "LibMTL": "LibMTL"}
    peers = {name: make for name, make in available.items() if importlib.util.find_spec(packages[name]) is not None}
    for name in available:
        if name not in peers:
            print(f"{name} is not installed and left out.")
    columns = [f"{peer}, us | over graph | over XLA" for peer in peers]
    print("| " + " | ".join(["method", "heads", "graph, us", "XLA, us", *columns]) + " |")
    print("| --- " + "| ---: " * (3 + 3 * len(peers)) + "|")
    for name in options.methods:
        for num_heads in options.heads:
            inputs = gramians(num_heads, 16)
            runs = {"graph": ours(name, inputs, xla=False), "xla": ours(name, inputs, xla=True)}
            found = {peer: make(name, inputs) for peer, make in peers.items()}
            runs.update({peer: run for peer, run in found.items() if run is not None})
            times = best(runs, options.rounds)
            line = [name, f"{num_heads}", *(f"{_micro(times[key], inputs):.0f}" for key in ("graph", "xla"))]
            for peer, run in found.items():
                if run is None or times[peer] is None:
                    line += ["" if run is None else "fails", "", ""]
                    continue
                line += [f"{_micro(times[peer], inputs):.0f}"]
                line += [f"{times[peer] / times[key]:.1f}" for key in ("graph", "xla")]
            print("| " + " | ".join(line) + " |", flush=True)


def _micro(seconds: float | None, inputs: list[np.ndarray]) -> float:
    return 1e6 * (seconds or 0.0) / len(inputs)


if __name__ == "__main__":
    main()
