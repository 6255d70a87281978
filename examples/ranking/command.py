"""The command: reads or makes rows, trains in several ways, and says how well each ranks."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from examples import ranking
from examples._command_line import whole
from examples._shared import Session, run_program
from examples.ranking import model
from examples.ranking.report import ALONE, Board
from examples.ranking.shop import draw_log
from examples.ranking.tables import OPTIONS as FILES
from examples.ranking.tables import Part, read_files
from multihead import MultiHeadTrainer, balancing

FUNNEL = {"click": "probability", "purchase": "probability", "price": "price"}
REQUESTS, QUICK = (30_000, 20_000), (400, 400)
"""Requests of the generated log, to train on and to compare on."""
PLAIN, BY_ROWS, ESMM = "plain sum", "sum by rows", "ESMM"
BALANCED = {"NormFloor()": balancing.NormFloor, "NormFloor(1.0)": lambda: balancing.NormFloor(1.0)}


class Plan(NamedTuple):
    """How long models are trained: rows of a batch, passes over the rows, and the first learning rate."""

    batch: int
    passes: int
    rate: float


PLANS = {"log": Plan(1024, 2, 3e-3), "files": Plan(256, 6, 2e-3)}


class Way(NamedTuple):
    """A way to train a model.

    Attributes:
        name: Its name in the tables; models of the same name are one row.
        kinds: The heads, and what each predicts.
        weights: The heads' weights, where they are not 1.
        balancer: Makes the balancer; None without one.
    """

    name: str
    kinds: Mapping[str, str]
    weights: Mapping[str, float] = {}
    balancer: Callable[[], balancing.Balancer] | None = None


def ways_of(kinds: Mapping[str, str], targets: model.Arrays) -> list[Way]:
    """The ways that are compared.

    A head's loss is a mean over the rows that have its label. `BY_ROWS` weighs it by their fraction, so that each label
    counts the same; so it is in Keras, where rows without a label have a sample weight of 0.
    """
    share = {name: float(np.mean(~np.isnan(labels))) for name, labels in targets.items()}
    ways = [Way(ALONE, {name: kind}) for name, kind in kinds.items()]
    if len(kinds) == 1:
        return ways
    ways.append(Way(PLAIN, kinds))
    if min(share[name] for name in kinds) < 1:
        ways.append(Way(BY_ROWS, kinds, {name: share[name] for name in kinds}))
    ways += [Way(name, kinds, balancer=new_balancer) for name, new_balancer in BALANCED.items()]
    if is_funnel(kinds):
        every = {"click": "probability", "purchase": "probability", "bought": "probability", **kinds}
        ways.append(Way(ESMM, every, {name: share[name] for name in every if name != "purchase"}))
    return ways


def is_funnel(kinds: Mapping[str, str]) -> bool:
    """Whether there are clicks, and purchases after clicks."""
    return kinds.get("click") == kinds.get("purchase") == "probability"


def as_funnel(part: Part) -> Part:
    """Rows whose `purchase` is labelled only after a click, and with `bought`, which is labelled in all rows."""
    click, purchase = part.targets["click"], part.targets["purchase"]
    bought = np.where(click == 1, purchase, np.where(click == 0, 0.0, np.nan)).astype("float32")
    after_click = np.where(click == 1, purchase, np.nan).astype("float32")
    return part._replace(targets={**part.targets, "purchase": after_click, "bought": bought})


def build(way: Way, part: Part, columns: Mapping[str, model.Column], encoder: str) -> MultiHeadTrainer:
    """The model of a way."""
    trainer = model.build_trainer(columns, way.kinds, part.targets, encoder)
    for name, weight in way.weights.items():
        trainer.set_weight(name, weight)
    return trainer


def body(session: Session) -> None:
    """Reads or makes rows, trains, and shows what came out."""
    options = session.options
    files = read_files(options, session.say)
    plan, truth = PLANS["files" if files else "log"], None
    if files:
        train, dev, kinds = files
    else:
        logs = [draw_log(size, 2 * session.seed + k) for k, size in enumerate(QUICK if session.quick else REQUESTS)]
        train, dev = (Part(log.inputs, log.targets, log.requests) for log in logs)
        kinds, truth = FUNNEL, logs[1].truth
    if is_funnel(kinds):
        train, dev = as_funnel(train), as_funnel(dev)
        clicked, bought = (int(np.nansum(train.targets[name])) for name in ("click", "bought"))
        session.say(f"To train on: {len(train.targets['click'])} impressions, {clicked} clicked, {bought} bought.")
    columns = {name: model.column_of(cells) for name, cells in train.inputs.items()}
    rows, others = (len(next(iter(part.targets.values()))) for part in (train, dev))
    updates = options.updates or (2 * model.PARTS if session.quick else max(1, plan.passes * rows // plan.batch))
    ways, seeds = ways_of(kinds, train.targets), range(session.seed, session.seed + options.seeds)
    measured = {**kinds, **({"bought": "probability"} if is_funnel(kinds) else {})}
    board, trained = Board(measured, dev, truth), {}
    with session.progress("training", model.PARTS * len(ways) * len(seeds)) as advance:
        for seed in seeds:
            for way in ways:
                started = time.monotonic()
                keras.utils.set_random_seed(seed)
                trainer = build(way, train, columns, options.encoder)
                data = model.batches(train.inputs, {name: train.targets[name] for name in way.kinds}, plan.batch, seed)
                model.fit(trainer, data, updates, plan.rate, way.balancer and way.balancer(), advance)
                board.add(way.name, seed, model.predict(trainer, dev.inputs), time.monotonic() - started)
                trained.setdefault(way.name, trainer)  # of the first seed
    for title, header, cells in board.tables():
        session.table(title, header, cells)
    told = f"{rows} rows to train on, {others} not; {updates} updates, seeds: {len(seeds)}, encoder: {options.encoder}."
    session.say(told)
    session.say(textwrap.fill(board.sentence(), 79))
    if board.compared():
        session.save(board.draw())
    best = board.best() if len(kinds) > 1 else ALONE
    trained[best].export(session.folder / "export" / "ranking")
    session.say(f"wrote {session.folder / 'export'}: the model {best!r} of seed {seeds[0]}")


OPTIONS: dict[str, dict[str, Any]] = {
    **FILES,
    "--encoder": {"choices": model.ENCODERS, "default": "shared", "help": "layers that all heads share, or experts"},
    "--seeds": {"type": whole(1), "default": 1, "metavar": "N", "help": "number of seeds, from --seed on (default: 1)"},
    "--updates": {"type": whole(1), "metavar": "N", "help": "updates of each model (default: 2 passes; of files, 6)"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    return run_program("ranking", ranking.__doc__, body, arguments, own=OPTIONS)
