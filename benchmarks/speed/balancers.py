"""Time of the balancers from inner products to coefficients, compared with TorchJD and LibMTL if installed.

All methods get the same random Gramians of conflicting gradients. Ours run in a compiled function, as a graph and with XLA:
the time of a loop over the Gramians, divided by their number. The other libraries run unchanged, on the CPU with one thread;
a method that needs gradients gets a square root of the Gramian, with as many columns as heads. Times are medians over
rounds. A ratio is our time divided by the other library's: 0.1 means ten times as fast.
Empty cells: the library does not have the method. "fails": the library's method raises an error for these inputs. The other
libraries are optional: `pip install torch "torchjd[full]"` and `pip install --no-deps LibMTL`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import statistics
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.speed._record import Line, Row, Table, finish, significant, table
from benchmarks.speed._shared import enough_steps, in_turns, parsed, parser_of
from multihead import balancing

METHODS = (
    "Sum EqualNorms NormBudget PCGrad GradVac UPGrad DualProj MGDA CAGrad NashMTL FairGrad IMTLG ConFIG AlignedMTL"
).split()


def gramians(num_heads: int, count: int) -> list[np.ndarray]:
    """Gramians of conflicting gradients whose norms are scaled by factors from 0.1 to 10."""
    random = np.random.default_rng(num_heads)
    found = []
    for _ in range(count):
        rows = random.normal(size=(num_heads, 64)) + random.normal(size=(num_heads, 1)) * random.normal(size=64)
        rows *= 10.0 ** random.uniform(-1, 1, size=(num_heads, 1))
        found.append((rows @ rows.T).astype(np.float32))
    return found


def ours(name: str, inputs: list[np.ndarray], *, xla: bool) -> Callable[[], object]:
    """A compiled call of one of our methods on all Gramians."""
    balancer = balancing.NormBudget({"0": 0.2}) if name == "NormBudget" else getattr(balancing, name)()
    balancer.bind([str(head) for head in range(len(inputs[0]))])
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
    """A call of TorchJD's method of the same name on all Gramians; None if there is none."""
    torch, aggregation = importlib.import_module("torch"), importlib.import_module("torchjd.aggregation")
    torch.set_num_threads(1)
    num_heads = len(inputs[0])
    options: dict[str, dict[str, Any]] = {
        "CAGrad": {"c": 0.4},
        "FairGrad": {"alpha": 2.0},
        "NashMTL": {"n_tasks": num_heads},
    }
    by_gramian = hasattr(aggregation, f"{name}Weighting")
    method = getattr(aggregation, f"{name}Weighting", getattr(aggregation, name, None))
    if method is None:
        return None
    made, tensors = (
        method(**options.get(name, {})),
        [torch.tensor(each) for each in (inputs if by_gramian else roots(inputs))],
    )

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
    """A call of LibMTL's method of the same name on all Gramians; None if there is none.

    LibMTL's methods compute gradients, solve, and set gradients in one call; here the first and the last part do nothing.
    """
    if "LibMTL" not in sys.modules:  # its __init__ imports models that need an old torchvision
        package, found = types.ModuleType("LibMTL"), importlib.util.find_spec("LibMTL")
        package.__path__ = list((found.submodule_search_locations if found else None) or [])
        sys.modules["LibMTL"] = package
    torch, weighting = importlib.import_module("torch"), importlib.import_module("LibMTL.weighting")
    method = getattr(weighting, LIBMTL.get(name, name), None)
    if method is None:
        return None
    num_heads, current = len(inputs[0]), [torch.zeros(1)]
    methods: dict[str, Callable[..., Any]] = {
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


def medians(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float | None]:
    """The median seconds of each run; None if it fails."""
    works = {}
    for name, run in runs.items():
        try:
            run()
            works[name] = run
        except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            if name in OURS:
                raise
    seconds = in_turns(works, rounds, enough_steps(works, 0.02))
    return {name: statistics.median(seconds[name]) if name in seconds else None for name in runs}


OURS = ("graph", "XLA")
PEERS: dict[str, tuple[str, Callable[[str, list[np.ndarray]], Callable[[], object] | None]]] = {
    "TorchJD": ("torchjd", torchjd),
    "LibMTL": ("LibMTL", libmtl),
}


def installed_peers() -> dict[str, Callable[[str, list[np.ndarray]], Callable[[], object] | None]]:
    """Functions that create the other libraries' runs, by name; prints which libraries are skipped, and why."""
    found = {}
    for name, (package, make) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            print(f"Skipping {name}: it is not installed.")
            continue
        try:
            make("PCGrad", gramians(2, 1))
            found[name] = make
        except ImportError as error:
            print(f"Skipping {name}: it cannot be imported: {error}")
    return found


def row_of(name: str, num_heads: int, peers: dict[str, Callable[..., Any]], options: argparse.Namespace) -> Row:
    """The row of one method with one number of heads."""
    inputs = gramians(num_heads, options.gramians)
    runs = {mode: ours(name, inputs, xla=mode == "XLA") for mode in OURS}
    offered = {}
    for peer, make in peers.items():
        try:
            offered[peer] = make(name, inputs)
        except ImportError:  # a solver that only this method needs
            offered[peer] = functools.partial(_fail, f"{peer} lacks a solver")
    runs.update({peer: run for peer, run in offered.items() if run is not None})
    times = medians(runs, options.rounds)
    micro = {key: None if value is None else 1e6 * value / len(inputs) for key, value in times.items()}
    row: Row = {"method": name, "heads": num_heads, **{f"{mode}, us": significant(micro[mode] or 0.0) for mode in OURS}}
    for peer, run in offered.items():
        theirs = micro.get(peer)
        row[f"{peer}, us"] = significant(theirs) if theirs is not None else None if run is None else "fails"
        for mode in OURS:
            row[f"{mode} / {peer}"] = None if theirs is None else significant((micro[mode] or 0.0) / theirs)
    return row


def tables(lines: Sequence[Line]) -> list[Table]:
    patterns = {key: ".2g" for line in lines for row in line["rows"] for key in row if " / " in key}
    return [table(lines, "", ["method", "heads"], (), ".0f", patterns)]


def _fail(reason: str) -> None:
    raise RuntimeError(reason)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("balancers", __doc__, rounds=5)
    parser.add_argument("--heads", type=int, nargs="+", default=[2, 4, 8, 16], help="numbers of heads to time")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, help="methods to time")
    parser.add_argument("--gramians", type=int, default=16, help="Gramians per round")
    options = parsed(parser, arguments, heads=[2], methods=["UPGrad"], gramians=2)
    peers = installed_peers()
    finish(options, [row_of(name, heads, peers, options) for name in options.methods for heads in options.heads], tables)
