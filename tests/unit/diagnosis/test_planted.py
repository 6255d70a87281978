"""Every planted trouble is recognised; where nothing is wrong nothing is recommended."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing, weighting
from multihead._display.tables import plain
from tests.helpers import planted
from tests.helpers.cases import quick
from tests.helpers.sources import ROOT

SEEDS = pytest.mark.parametrize("seed", quick(1, [0, 1, 2]))


@pytest.fixture(autouse=True)
def _eagerly():
    """Tracing these tiny models takes longer than running them."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


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
def test_three_scales_give_a_weight_for_every_head(seed):
    trainer, data, report = diagnosed("three_scales", seed)
    finding = found(report, "scale")
    assert finding.heads == ("c", "a", "b") and "`trainer.compile(optimizer, **diagnosis.suggestion)` uses" in finding
    assert isinstance(report.suggestion["balancer"], balancing.NormFloor) and len(report.suggestion) == 1
    factors = report.factors
    assert set(factors) == {"a", "b", "c"} and factors["b"] > factors["a"] > factors["c"] == 1
    assert f"do part of it: {plain(50 * factors['a'])} for 'a', {plain(factors['b'])} for 'b', 2,500 for 'c'" in finding
    trainer.compile("adam", weighting=weighting.Fixed(factors))
    again = trainer.diagnose(data)
    norms = again.norms["representation"]
    assert norms.max() < 10 * norms.min() and np.argmax(norms) == 2  # the head that leads goes on leading
    assert [each.kind for each in again.findings if each.kind in ("scale", "sensitivity")] == []


@SEEDS
def test_of_many_heads_the_text_says_who_gains_and_who_pays_by_the_law_of_the_pace(seed):
    _, _, report = diagnosed("many", seed)
    assert report.suggestion["balancer"].preference is None
    finding = found(report, "scale")
    assert finding.heads == ("a", "b", "c", "d", "e")
    assert re.search("is [0-9.,]+ to [0-9.,]+ times as large as those of 'b', 'c', 'd' and 'e'", finding)
    # Four heads of a half beside one: a pace of 0.5 / sqrt(1 + 4 * 0.25) and of 1 / sqrt(1 + 4 * 0.25).
    gains, _, pays = finding.partition("; the cost is that ")
    assert gains.count("moves at 35%") == 4
    assert pays.startswith("'a' moves at 71% of its pace alone instead of 100.0%.")


@SEEDS
def test_a_small_weight_is_a_wish_and_stays_in_force(seed):
    _, _, report = diagnosed("small_on_purpose", seed)
    (finding,) = report.findings
    assert finding.kind == "small weight" and finding.heads == ("again",) and report.suggestion == {}
    _, _, report = diagnosed("auxiliary", seed)
    assert report.suggestion["balancer"].preference == {"again": 0.05}
    assert "(times the weight of 'again', which is below 1)" in found(report, "scale")


@SEEDS
def test_a_head_that_is_nothing_but_noise_is_not_fed(seed):
    _, _, report = diagnosed("only_noise", seed)
    finding = found(report, "noise")
    assert finding.heads == ("noise",) and "its labels may not depend on the inputs" in finding
    assert report.suggestion == {} and report.factors == {}


@SEEDS
def test_a_small_mean_loss_alone_is_no_starved_head(seed):
    _, _, report = diagnosed("learns_well", seed)
    assert report.losses[0] < 1e-3 and report.suggestion == {} and report.factors == {}
    assert not {each.kind for each in report.findings} & {"scale", "sensitivity"}


@SEEDS
def test_units_that_are_raw_in_both_directions_are_scaled_and_nothing_else(seed):
    _, _, report = diagnosed("raw_both_ways", seed)
    assert [each.heads for each in report.findings if each.kind == "units"] == [("cents",), ("megatons",)]
    assert "Scale the labels first, and change nothing else" in found(report, "scale")
    assert report.suggestion == {} and report.factors == {}


@SEEDS
def test_a_module_that_is_flat_at_first_needs_time_and_no_weight(seed):
    _, _, report = diagnosed("flat_module", seed)
    finding = found(report, "sensitivity")
    assert finding.heads == ("steep", "flat") and "train an epoch, and diagnose again" in finding
    assert report.suggestion == {} and report.factors == {}


@SEEDS
def test_raw_units_are_to_be_standardised_first(seed):
    _, _, report = diagnosed("raw_units", seed)
    finding = report.findings[0]
    assert finding.kind == "units" and finding.heads == ("cents",) and "Scale them before anything else" in finding
    mean, deviation = report.label_means[0], report.label_deviations[0]
    assert (mean, deviation) == (pytest.approx(3000, rel=1e-3), pytest.approx(1000, rel=1e-3))
    assert "the labels are in different units" in found(report, "scale")
    assert max(report.factors.values()) == 1 and set(report.suggestion) == {"balancer"}


@SEEDS
def test_an_offset_of_untrained_heads_is_no_conflict(seed):
    _, _, report = diagnosed("offset", seed)
    assert report.cosines["parameters"][0, 1] < -0.4 and report.progress == ("untrained", "untrained")
    assert "It cannot be told yet whether some heads oppose each other: 'a' and 'b'" in found(report, "untrained")
    assert not {each.kind for each in report.findings} & {"conflict", "conflict in one layer"} and report.suggestion == {}


@SEEDS
def test_a_head_that_is_done_is_not_in_other_units(seed):
    _, _, report = diagnosed("done", seed)
    (finding,) = report.findings
    assert report.progress == ("done", "learning") and report.suggestion == {}
    assert finding.kind == "done" and finding.heads == ("done",) and "Leave its weight alone" in finding


@SEEDS
def test_a_head_that_learns_nothing_more_from_noisy_labels_is_not_said_to_be_done(seed):
    _, _, report = diagnosed("limited", seed)
    assert report.progress == ("noisy", "learning") and report.suggestion == {}
    assert not {each.kind for each in report.findings} & {"done", "scale", "left behind", "conflict"}
    _, _, report = diagnosed("starved_and_noisy", seed)
    assert report.progress[0] == "noisy" and found(report, "scale").heads == ("learning", "limited")
    assert set(report.suggestion) == {"balancer"}


@SEEDS
def test_a_frozen_encoder(seed):
    _, _, report = diagnosed("frozen", seed)
    (finding,) = report.findings
    assert finding.kind == "frozen encoder" and report.suggestion == {} and "nan" not in finding


@SEEDS
def test_the_share_of_labels_counts_elements(seed):
    _, _, report = diagnosed("few_labels", seed)
    np.testing.assert_allclose(report.labelled, [1, 1 / planted.ROWS, 1])
    assert "'b' has labels for only 6% of its elements" in found(report, "few labels") and report.suggestion == {}


@SEEDS
def test_a_summed_loss(seed):
    trainer, data, report = diagnosed("summed", seed)
    assert "it grows with the size of the batch, so it is summed over it" in found(report, "scale")
    assert report.is_summed == (False, True)
    assert report.factors["a"] > 4 * report.factors["b"] and set(report.suggestion) == {"balancer"}


@SEEDS
def test_a_head_that_never_reaches_the_encoder(seed):
    _, _, report = diagnosed("unreached", seed)
    assert found(report, "unreached").heads == ("b",) and report.suggestion == {}


@SEEDS
def test_logits_under_a_loss_of_probabilities(seed):
    _, _, report = diagnosed("logits", seed)
    finding = found(report, "no probabilities")
    assert finding.heads == ("b",) and "`from_logits=True`" in finding and report.findings[0] is finding


@SEEDS
def test_a_dead_encoder(seed):
    _, _, report = diagnosed("dead", seed)
    (finding,) = report.findings
    assert finding.kind == "dead encoder" and report.suggestion == {}


@SEEDS
def test_two_equal_heads(seed):
    _, _, report = diagnosed("equal", seed)
    (finding,) = report.findings
    assert finding.kind == "equal heads" and finding.heads == ("a", "b") and report.suggestion == {}


@SEEDS
def test_heads_that_read_different_tensors_are_judged_at_the_parameters(seed):
    _, _, report = diagnosed("two_tensors", seed)
    assert report.reads == ((True, False), (False, True)) and report.cosines["representation"][0, 1] == 0
    assert found(report, "scale").startswith("The encoder gradient of 'b' is")
    assert "their gradients cannot be compared there" in found(report, "different tensors")
    assert report.factors["a"] > 50 and report.suggestion["balance_at"] == "parameters"


@SEEDS
def test_heads_that_oppose_each_other(seed):
    _, _, report = diagnosed("opposed", seed)
    (finding,) = report.findings
    assert finding.kind == "conflict" and "conflict in 100% of the batches" in finding
    assert "Most of it is in the layer 'oppose'" in finding and report.suggestion == {}
    assert report.spreads["parameters"].high[0, 1] < -0.5


@SEEDS
def test_heads_that_oppose_each_other_in_one_layer_only(seed):
    _, _, report = diagnosed("opposed_in_one_layer", seed)
    (finding,) = report.findings
    assert finding.kind == "conflict in one layer" and "conflict in the layer 'oppose' (cosine -" in finding
    assert report.cosines["parameters"][0, 1] > 0.3
    assert list(report.layer_norms) == ["agree", "oppose"] and report.layer_cosines["agree"].mean[0, 1] > 0.9


@SEEDS
def test_a_head_that_is_left_behind(seed):
    """Two heads share a representation of one number, of which one has taken it all."""
    _, _, report = diagnosed("left_behind", seed)
    finding = report.findings[0]
    assert finding.kind == "left behind" and finding.heads == ("late", "early") and report.suggestion == {}
    assert "'late' predicts no better than a constant, while 'early' has removed" in finding
    assert "give the encoder a larger output or more layers" in finding
    assert not {each.kind for each in report.findings} & {"healthy", "untrained", "scale"}


def test_every_row_of_the_docs_is_planted():
    """`docs/choosing.md` says what to do about each kind of finding."""
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = page.partition("| what `diagnose` finds")[2].partition("\n\n")[0].splitlines()[2:]
    kinds = [kind for row in rows for kind in re.findall("`([^`]+)`", row.split("|")[1])]
    tests = Path(__file__).read_text(encoding="utf-8")
    assert len(kinds) > 12 and [kind for kind in kinds if f'"{kind}"' not in tests] == []
