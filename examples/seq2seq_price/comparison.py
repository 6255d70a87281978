"""The first command: each head alone, the plain sum and balanced gradients on the same orders, with a table and advice."""

from __future__ import annotations

import json
import math
import textwrap
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from examples import _style
from examples.seq2seq_price import model, report
from examples.seq2seq_price.answers import PriceModel
from examples.seq2seq_price.batches import training_batches
from examples.seq2seq_price.command import check_output
from examples.seq2seq_price.copying import Rows as Ids
from examples.seq2seq_price.data import Data, workshop_data
from examples.seq2seq_price.run import build_model, export, make_folders
from multihead import MultiHeadTrainer

ALONE, PLAIN, BALANCED = "each head alone", "plain sum", "balanced"
WHAT = {"reply": "exact replies", "price": "right prices"}
Rows = Mapping[str, Mapping[str, float]]


def compare(options: Namespace) -> None:
    """Trains in all ways, prints what came out, and keeps the balanced model in `--output`.

    Raises:
        InputError: The folder has a run or is not writable.
    """
    check_output(options)
    make_folders(options, "output", "export")
    folder = Path(options.output)
    data = workshop_data(options.orders, options.orders // 6, options.seed)
    train, dev = (len(data.splits[split].texts) for split in ("train", "dev"))
    print(
        f"{train} orders to train on, {dev} held out. An encoder reads each order; one head\n"
        "writes its normal form (`reply`), the other estimates its price range (`price`).\n"
        "The accuracies of tokens and of price ranges in training, by epoch:"
    )
    found, last = train_all(options, data)
    rows = as_rows(found)
    last.save(folder, data.columns)
    export(options, last)
    (folder / "comparison.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    draw(folder / "comparison.png", rows)
    Console().print(table(rows))
    print(textwrap.fill(advice(rows, dev), report.WIDTH))
    print(f"comparison.png and the balanced model written to {folder}")


def train_all(
    options: Namespace,
    data: Data,
    chosen: Sequence[model.Way] = model.WAYS,
    weights: Mapping[str, float] = MappingProxyType({}),
) -> tuple[dict[str, model.Trained], PriceModel]:
    """What became of each of some ways to train, by name, and the last model; `weights` of the price are by name, too."""
    held_out, models = data.splits["dev"], [build_model(options, data)]  # this one for its vocabularies
    read = models[0].vectorizers
    batches, steps = training_batches(data.splits["train"], read, options.batch_size, seed=options.seed)
    rows = read(held_out.texts, held_out.targets)
    ids, reply = (part.numpy() for part in read.batch(Ids(*(part.to_tensor() for part in rows))))
    clock = report.Clock(steps * sum(way.epochs(options.epochs) for way in chosen))

    def build(way: model.Way) -> MultiHeadTrainer:
        models.append(build_model(options, data, heads=way.heads))
        if way.name in weights:
            models[-1].trainer.set_weight("price", weights[way.name])
        return models[-1].trainer

    given = {name: vars(options)[name] for name in ("epochs", "seed", "learning_rate", "weight_decay", "micro_batches")}
    targets = {"reply": reply, **held_out.labels}
    trained = model.ways(
        chosen, build, batches, (ids, targets), callbacks=lambda way: [report.Progress(clock, way.name)], **given
    )
    return {each.way.name: each for each in trained}, models[-1]


def as_rows(found: Mapping[str, model.Trained]) -> dict[str, dict[str, float]]:
    """The three rows of the table; the two models of the first count together."""
    alone = [each for each in found.values() if len(each.way.heads) == 1]
    groups = {ALONE: alone, **{name: [found[name]] for name in (PLAIN, BALANCED)}}
    return {
        name: {
            **{head: score for each in group for head, score in each.scores.items()},
            "updates": sum(each.updates for each in group),
            "seconds": sum(each.seconds for each in group),
        }
        for name, group in groups.items()
    }


def table(rows: Rows) -> Table:
    """The scores and the cost of each way."""
    shown = Table("trained", *("exact replies", "price accuracy", "updates", "seconds"))
    for name, row in rows.items():
        shown.add_row(name, f"{row['reply']:.1%}", f"{row['price']:.1%}", f"{row['updates']}", f"{row['seconds']:.0f}")
    return shown


def advice(rows: Rows, held_out: int) -> str:
    """Which joint model to take, and why: the one that is better in the head in which they differ most, beyond the noise."""
    gains = {head: rows[BALANCED][head] - rows[PLAIN][head] for head in WHAT}
    means = {head: (rows[BALANCED][head] + rows[PLAIN][head]) / 2 for head in WHAT}
    # Two standard errors of a difference.
    noise = {head: 2 * math.sqrt(2 * mean * (1 - mean) / held_out) for head, mean in means.items()}
    clear = [head for head in WHAT if abs(gains[head]) > noise[head]]
    if not clear:
        largest = max(noise.values())
        return f"Take the plain sum: balancing changes neither head beyond the noise of {held_out} orders (±{largest:.1%})."
    head = max(clear, key=lambda name: abs(gains[name]))
    (other,) = [name for name in WHAT if name != head]
    taken, left = (BALANCED, PLAIN) if gains[head] > 0 else (PLAIN, BALANCED)
    alone, before, after = (f"{rows[name][head]:.1%}" for name in (ALONE, left, taken))
    beside = f"{100 * (rows[taken][other] - rows[left][other]):+.1f} points"
    within = "" if other in clear else " (noise)"
    return (
        f"Take the {taken} model: {after} {WHAT[head]} instead of {before} ({alone} alone), with {beside}{within} in "
        f"{WHAT[other]}; and one encoder serves both heads."
    )


@_style.styled
def draw(path: Path, rows: Rows) -> None:
    """Draws the scores as bars: a panel for each head, a bar for each way."""
    figure, panels = _style.new_figure(1, 2, 2.6, sharey=True)
    colors = (_style.GREY, _style.RED, _style.BLUE)
    for axis, (head, title) in zip(panels, WHAT.items()):
        values = [100 * row[head] for row in rows.values()]
        bars = axis.barh(list(rows), values, color=colors, height=0.65)
        axis.bar_label(bars, [f"{value:.0f} %" for value in values], padding=4)
        axis.set(title=title, xlim=(0, 110), xticks=[])
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(length=0)
    panels[0].invert_yaxis()
    figure.savefig(path)
