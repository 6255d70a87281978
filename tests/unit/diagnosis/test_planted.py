"""Every planted trouble is recognised; where nothing is wrong nothing is recommended."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import planted
from tests.helpers.cases import quick
from tests.helpers.sources import ROOT

# What is said of measurements, which other tests of this folder make on both stacks.
pytestmark = [pytest.mark.mathematics, pytest.mark.usefixtures("eagerly")]
SEEDS = pytest.mark.parametrize("seed", quick(1, [0, 1, 2]))


def diagnosed(name, seed):
    keras.utils.set_random_seed(seed)
    trainer, data = getattr(planted, name)(seed)
    return trainer, data, trainer.diagnose(data)


def found(report, kind):
    (finding,) = [each for each in report.findings if each.kind == kind]
    return finding


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", quick(2, range(10)))
def test_nothing_is_recommended_where_nothing_is_wrong(seed):
    _, _, report = diagnosed("healthy", seed)
    (finding,) = report.findings
    assert finding.kind == "healthy" and "the plain sum is enough" in finding
    assert report.suggestion == {}


@SEEDS
def test_three_scales_are_balanced_by_the_default_floor(seed):
    trainer, data, report = diagnosed("three_scales", seed)
    finding = found(report, "scale")
    assert finding.heads == ("c", "a", "b") and "`trainer.compile(optimizer, **diagnosis.suggestion)` uses" in finding
    assert report.suggestion == {"balancer": "NormFloor"}
    trainer.compile("adam", **report.suggestion)
    again = trainer.diagnose(data)
    assert again.suggestion == {} and "NormFloor is configured already" in found(again, "scale")


@SEEDS
def test_of_many_heads_the_text_says_who_gains_and_who_pays_by_the_law_of_the_pace(seed):
    _, _, report = diagnosed("many", seed)
    finding = found(report, "scale")
    assert finding.heads == ("a", "b", "c", "d", "e")
    assert re.search("is [0-9.,]+ to [0-9.,]+ times as large as those of 'b', 'c', 'd', 'e'", finding)
    # Four heads of a fifth beside one: speeds of 0.2 / sqrt(1 + 4 * 0.04) and of 1 / sqrt(1 + 4 * 0.04).
    assert "moves at 19% of its speed alone, and 'a' at 93% instead of 100%." in finding


@pytest.mark.thorough
@SEEDS
def test_what_keeps_a_small_weight_is_said(seed):
    for name, weight in (("small_on_purpose", 0.02), ("auxiliary", 0.05)):
        _, _, report = diagnosed(name, seed)
        assert report.suggestion == {"balancer": "NormFloor"}
        assert f"If the weight of 'again' was meant, add `preference={{'again': {weight}}}`" in found(report, "scale")


@SEEDS
def test_units_that_are_raw_in_both_directions_are_scaled(seed):
    trainer, data, report = diagnosed("raw_both_ways", seed)
    large, small = (each for each in report.findings if each.kind == "units")
    assert (large.heads, small.heads) == (("cents",), ("megatons",))
    assert "starts near 0 and needs very many updates" in large and "its loss and its gradient are tiny" in small
    assert report.suggestion["target_scaling"] == {"cents": "standardize", "megatons": "standardize"}
    trainer.compile("sgd", **report.suggestion)
    again = trainer.diagnose(data)
    assert not {each.kind for each in again.findings} & {"units", "scale"} and again.suggestion == {}


@SEEDS
def test_raw_units_are_to_be_standardised_first(seed):
    trainer, data, report = diagnosed("raw_units", seed)
    finding = report.findings[0]
    assert finding.kind == "units" and finding.heads == ("cents",) and "Scale them before anything else" in finding
    mean, deviation = report.label_means[0], report.label_deviations[0]
    assert (mean, deviation) == (pytest.approx(3000, rel=1e-3), pytest.approx(1000, rel=1e-3))
    assert set(report.suggestion) == {"balancer", "target_scaling"}
    x, y = (np.concatenate([each[i] if i == 0 else each[1]["cents"] for each in data]) for i in (0, 1))
    euros = np.concatenate([each[1]["euros"] for each in data])
    tf.config.run_functions_eagerly(False)  # Keras warns of it in `fit`
    trainer.compile(keras.optimizers.Adam(0.02), **report.suggestion)
    trainer.fit(x, {"cents": y, "euros": euros}, epochs=15, verbose=0)
    error = np.mean((trainer.predict(x, verbose=0)["cents"] - y) ** 2)
    assert error < 0.5 * y.var()  # in their units, from a start near 0 that is nine variances away
    assert "units" not in [each.kind for each in trainer.diagnose(data).findings]


# What is planted: the kind of the finding, its heads, what it says, and the options that are suggested.
FOUND = {
    "frozen": ("frozen encoder", (), "", set()),
    "few_labels": ("few labels", ("b",), "'b' has labels for only 6.2% of its elements", None),
    "rare_class": ("few labels", ("b",), "Only 3 of the 128 labels of 'b' are of its rarer class", None),
    "unreached": ("unreached", ("b",), "", set()),
    "logits": ("no probabilities", ("b",), "`from_logits=True`", None),
    "dead": ("dead encoder", None, "", set()),
    "two_tensors": ("scale", ("b", "a"), "The encoder gradient of 'b' is", {"balancer", "balance_at"}),
    "opposed": ("conflict", None, "Most of it is in the layer 'oppose'", set()),
    "opposed_in_one_layer": ("conflict in one layer", None, "conflict in the layer 'oppose' (cosine -", None),
    "left_behind": ("left behind", ("late", "early"), "give the encoder a larger output or more layers", set()),
    "offset": ("unclear", None, "It cannot be told whether 'a' and 'b' (cosine -0.", set()),
    "flat_module": ("scale", ("steep", "flat"), "times as large as that of 'flat'", {"balancer"}),
    "summed": ("scale", ("b", "a"), "of the encoder's gradient serves 'b'", {"balancer"}),
}
ALONE = ("frozen", "dead", "opposed", "opposed_in_one_layer")


@pytest.mark.first_cases(10)
@SEEDS
@pytest.mark.parametrize("name", FOUND)
def test_the_planted_trouble_is_found(name, seed):
    _, _, report = diagnosed(name, seed)
    kind, heads, words, suggested = FOUND[name]
    finding = found(report, kind)
    assert words in finding and "nan" not in finding and (heads is None or finding.heads == heads)
    assert suggested is None or set(report.suggestion) == suggested
    others = {each.kind for each in report.findings} - {kind}
    assert not others & {"conflict", "conflict in one layer"} and not (name in ALONE and others)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("form", planted.RARE)
def test_a_rare_class_is_found_in_all_the_data_only(form):
    trainer, data = planted.rare_class(0, form)
    has_missing = data[0][1]["b"].dtype.kind == "f"
    if has_missing:
        data[0][1]["b"][1] = np.nan
    assert f"Only 3 of the {128 - has_missing} labels of 'b'" in found(trainer.diagnose(data), "few labels")
    assert "few labels" not in {each.kind for each in trainer.diagnose(data, batches=len(data)).findings}


@SEEDS
@pytest.mark.parametrize(("name", "progress"), [("done", "done"), ("limited", "noisy")])
def test_a_head_that_has_learned_what_it_can_is_in_no_trouble(name, progress, seed):
    _, _, report = diagnosed(name, seed)
    assert report.progress == (progress, "learning")
    assert not {each.kind for each in report.findings} & {"units", "conflict", "left behind"}


@SEEDS
def test_heads_that_read_different_tensors_are_judged_at_the_parameters(seed):
    _, _, report = diagnosed("two_tensors", seed)
    assert report.reads == ((True, False), (False, True)) and report.cosines["representation"][0, 1] == 0
    assert "their gradients cannot be compared there" in found(report, "different tensors")
    assert report.suggestion["balance_at"] == "parameters"


def test_every_row_of_the_docs_is_planted():
    """`docs/choosing.md` says what to do about each kind of finding."""
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = page.partition("| what `diagnose` finds")[2].partition("\n\n")[0].splitlines()[2:]
    kinds = [kind for row in rows for kind in re.findall("`([^`]+)`", row.split("|")[1])]
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert len(kinds) > 12 and [kind for kind in kinds if f'"{kind}"' not in tests] == []
