"""What a comparison says of given lines: values, paired differences, delta-m, words, tables and pictures."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from scipy import stats

from multihead import comparison
from multihead._display.front import Point, draw_front
from multihead.comparison import Comparison
from tests.helpers.letters import small_letters
from tests.helpers.recorded import ALONE, SEEDS, TWICE, VARIANTS, lines, on_validation, run, settings


@pytest.fixture(scope="module")
def found():
    return Comparison(lines())


def test_values_in_the_order_of_common_seeds(found):
    assert found.seeds == (0, 1, 2, 3)  # 99 is not in every variant
    assert found.variants == ("alone", "plain sum", "size 0.3", "EqualNorms", "EqualNorms, equal cost")
    assert found.values("alone", "size").tolist() == ALONE["size"]
    assert found.values("EqualNorms, equal cost", "kind").tolist() == TWICE["kind"]
    assert found.updates["EqualNorms, equal cost"] == 160 and found.rates["EqualNorms, equal cost"] == 0.1
    assert found.rates["kind alone"] == 0.01 and found.costs == {"EqualNorms": {"update": 0.625, "serve": 0.5}}


@pytest.mark.parametrize("confidence", [0.95, 0.8])
@pytest.mark.parametrize("other", ["alone", "plain sum"])
def test_differences_are_paired_and_signed(found, other, confidence):
    others = ALONE if other == "alone" else VARIANTS[other]
    for head, sign in (("kind", 1), ("size", -1)):
        each = found.difference("EqualNorms, equal cost", head, other, confidence)
        paired = stats.ttest_rel(sign * np.array(TWICE[head]), sign * np.array(others[head]))
        expected = paired.confidence_interval(confidence)
        assert (each.low, each.high) == pytest.approx((expected.low, expected.high))
    assert found.difference("EqualNorms, equal cost", "size").verdict == "better"  # lower than alone, and lower is better
    assert found.difference("EqualNorms, equal cost", "size", "plain sum").verdict == "worse"


def test_delta_m_is_the_mean_over_heads_of_relative_changes_by_seed(found):
    by_seed = [
        ((VARIANTS["plain sum"]["kind"][i] - ALONE["kind"][i]) / ALONE["kind"][i]
         + (ALONE["size"][i] - VARIANTS["plain sum"]["size"][i]) / ALONE["size"][i]) / 2
        for i in SEEDS
    ]  # fmt: skip
    each = found.delta_m("plain sum")
    expected = stats.t.interval(0.95, 3, np.mean(by_seed), stats.sem(by_seed))
    assert (each.mean, each.low, each.high) == pytest.approx((np.mean(by_seed), *expected))
    assert found.delta_m("alone") == (0.0, 0.0, 0.0, 4)


def test_words_say_better_worse_and_within_noise(found):
    said = "\n".join(found.findings)
    assert "'plain sum' against each head alone: worse on 'kind', -0.0975" in said and "; better on 'size'" in said
    assert "'EqualNorms' against each head alone: within the noise of seeds on 'kind'" in said
    assert (
        "An update of 'EqualNorms' takes 0.625" in said and "1.6 times as many" in said and "the encoder runs once" in said
    )
    assert "worth it at equal cost" in said and "with 'EqualNorms, equal cost'" in said
    assert "at the edge of the grid for 'EqualNorms, equal cost'" in said
    assert "validation data" not in said


def test_the_variant_that_validation_data_favour_is_not_the_luckiest_on_the_test_data():
    better, halved = {"kind": [0.85, 0.88, 0.84, 0.85], "size": ALONE["size"]}, [1.0, 1.1, 0.95, 1.05]
    hurt = {"kind": [0.70, 0.74, 0.69, 0.70], "size": halved}  # a larger mean change, and a head that pays
    values = {"plain sum": hurt, "size 0.3": better, "EqualNorms": ALONE, "EqualNorms, equal cost": hurt}
    found = on_validation(values)
    assert found.values("plain sum", "size", "validation").tolist() == halved
    assert found.choose() == "size 0.3" and found.choose(["plain sum", "EqualNorms"]) == "EqualNorms"
    assert found.choose(["plain sum", "EqualNorms, equal cost"]) == "plain sum"  # none without harm, and fewer updates
    said = "\n".join(found.findings)
    assert (
        "The validation data favour 'size 0.3'. On the test data" in said
        and "1 of 2 heads are better and 1 worse than alone" in said
    )
    lucky = on_validation({**values, "size 0.3": {**better, "kind": [0.85, np.nan, 0.84, 0.85]}})
    assert lucky.choose() == "EqualNorms"  # a variant that has failed at a seed is not chosen
    with pytest.raises(
        ValueError, match="`variants` must have a variant with finite metrics of all heads on the validation data"
    ):
        lucky.choose(["size 0.3"])
    with pytest.raises(ValueError, match="`variants` must be one of 'plain sum'.*Received: variants='alone'"):
        found.choose(["alone"])


def test_of_variants_that_validation_data_cannot_tell_apart_the_cheapest_is_chosen():
    changes = (0.02, -0.012, 0.006, -0.008)  # on average better than alone, by less than a standard error
    noisy = {"kind": [a + b for a, b in zip(ALONE["kind"], changes)], "size": ALONE["size"]}
    values = {"plain sum": TWICE, "size 0.3": ALONE, "EqualNorms": ALONE, "EqualNorms, equal cost": noisy}
    found = on_validation(values)
    assert found.delta_m("alone").mean == 0 and found.choose(["EqualNorms", "EqualNorms, equal cost"]) == "EqualNorms"
    assert found.choose(["size 0.3", "EqualNorms, equal cost"]) == "size 0.3"
    assert found.choose() == "plain sum"  # as cheap, and better beyond the noise
    same = on_validation({**values, "EqualNorms, equal cost": TWICE})
    same.costs["plain sum"] = {"update": 2.0, "serve": 1.0}  # 200 updates' worth against 100
    assert same.choose(["plain sum", "EqualNorms, equal cost"]) == "EqualNorms, equal cost"
    one = on_validation(values)
    one.seeds = (0,)
    assert one.choose(["EqualNorms", "EqualNorms, equal cost"]) == "EqualNorms, equal cost"  # no interval: the best


def test_a_variant_is_not_chosen_for_being_noisy():
    def shifted(*changes):
        return {"kind": [a + b for a, b in zip(ALONE["kind"], changes)], "size": ALONE["size"]}

    paying = {**shifted(0.06, 0.07, 0.06, 0.07), "size": [2.01 * each / 2 for each in ALONE["size"]]}
    collapsing = shifted(0.02, 0.02, 0.02, -0.5)  # at one seed; that it is worse than alone is hidden by its own noise
    values = {"plain sum": collapsing, "size 0.3": paying, "EqualNorms": ALONE, "EqualNorms, equal cost": ALONE}
    found = on_validation(values)
    assert found.choose(["plain sum", "size 0.3"]) == "size 0.3"
    assert found.choose(["plain sum", "size 0.3", "EqualNorms"]) == "EqualNorms"  # no head is worse, nor the mean
    level = on_validation({**values, "EqualNorms, equal cost": shifted(-0.004, 0.002, 0.003, -0.004)})
    assert (
        level.choose(["size 0.3", "EqualNorms, equal cost"]) == "EqualNorms, equal cost"
    )  # below 0, by less than the noise
    better = on_validation({**values, "EqualNorms, equal cost": shifted(0.004, 0.005, 0.005, 0.004)})
    assert better.choose(["plain sum", "EqualNorms, equal cost"]) == "EqualNorms, equal cost"  # cheaper, and within noise


def test_tables_show_means_deviations_and_costs(found):
    text = str(found)
    assert "0.805 ± 0.013" in text and "kind_accuracy ↑" in text and "size_mae ↓" in text
    (title, columns, rows), (_, _, differences) = found.tables()
    assert title == "On the test data: mean ± standard deviation over 4 seeds" and columns[:4] == [
        "variant",
        "updates",
        "cost",
        "rate",
    ]
    assert [row[1:4] for row in rows] == [
        ["100", "1.00", "0.01"],
        ["100", "", "0.01"],
        ["100", "", "0.01"],
        ["100", "0.62", "0.01"],
        ["160", "1.00", "0.1"],
    ]
    assert [row[0] for row in differences] == list(found.variants[1:])


def answer(values, seeds=SEEDS, **options):
    of_seeds = range(seeds) if isinstance(seeds, int) else seeds
    given = [settings(**options), {"variant": "a", "is_fixed": False, "how": {}}]
    for seed in of_seeds:
        part = options.get("split", "test")
        new = [run("alone", seed, {head: each[seed]}, head=head) for head, each in ALONE.items()]
        new += [run("a", seed, {head: each[seed] for head, each in values.items()})]
        given += [{**line, "metrics": {part: line["metrics"]["test"]}} for line in new]
    return "\n".join(Comparison(given).findings)


def test_too_few_seeds_are_said():
    assert "cannot be said without intervals" in answer(ALONE, 1) and "With 1 seed, no difference" in answer(ALONE, 1)
    assert "With 2 seeds, intervals are very wide" in answer(ALONE, 2)
    assert "on the validation data, on which the learning rates were chosen on another seed" in answer(
        ALONE, split="validation"
    )


def test_runs_that_did_not_stay_finite_are_shown(found):
    given = lines()
    for line in given:
        if line.get("variant") == "plain sum" and line.get("seed") == 2:
            line["metrics"] = {"test": {}, "validation": {}}
    broken = Comparison(given)
    assert np.isnan(broken.values("plain sum", "kind")[2]) and "(1 failed)" in str(broken)
    assert broken.difference("plain sum", "kind").seeds == 3 and json.dumps(broken.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.values("plain", "kind"), r"`variant` must be one of 'alone'.*Received: variant='plain'. Did you mean"),
        (
            lambda c: c.values("alone", "knd"),
            r"`head` must be one of 'kind', 'size'. Received: head='knd'. Did you mean 'kind'",
        ),
        (lambda c: c.difference("alone", "kind", "al"), "`other` must be one of 'alone'"),
        (lambda c: c.values("alone", "kind", "tset"), "`part` must be one of 'test', 'validation'.*Did you mean 'test'"),
        (lambda c: c.delta_m("alone", confidence=2), "`confidence` must be a finite number"),
    ],
)
def test_unknown_names(found, call, message):
    with pytest.raises(ValueError, match=message):
        call(found)


# Files


def written(path, given):
    path.write_text("".join(json.dumps(line) + "\n" for line in given), encoding="utf-8")
    return path


def test_a_file_is_read_without_what_a_crash_has_cut_off(tmp_path, found):
    path = written(tmp_path / "study.jsonl", lines())
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"run": "final", "variant": "pla')
    again = comparison.read(path)
    assert again.to_dict() == found.to_dict() and str(again) == str(found)


def test_other_files_are_errors(tmp_path):
    with pytest.raises(ValueError, match="`path` must have runs of all variants for at least one seed. Received"):
        comparison.read(written(tmp_path / "new.jsonl", [settings(), {"variant": "a", "is_fixed": True, "how": {}}]))
    with pytest.raises(ValueError, match="`path` must be the file of a comparison, .*whose line 1 is"):
        comparison.read(written(tmp_path / "ledger.jsonl", [{"step": 1}]))
    with pytest.raises(FileNotFoundError, match=r"`path` must be a file. Received: .*Did you mean '.*ledger.jsonl'\?"):
        comparison.read(tmp_path / "ledgr.jsonl")


# Pictures


def texts_of(metric):
    metric.draw_without_rendering()
    (axis,) = metric.axes
    return [text for text in axis.texts if text.get_text()], axis


def overlapping(metric):
    texts, _ = texts_of(metric)
    boxes = [super(type(text), text).get_window_extent() for text in texts]  # without the line to the point
    outside = [text.get_text() for text, box in zip(texts, boxes) if box.x1 > metric.bbox.x1 or box.x0 < 0]
    pairs = [(i, j) for i in range(len(boxes)) for j in range(i) if boxes[i].overlaps(boxes[j])]
    return [(texts[i].get_text(), texts[j].get_text()) for i, j in pairs], outside


def test_front_of_two_heads_has_an_axis_for_each_on_which_better_is_further_out(found):
    metric = found.plot()
    texts, axis = texts_of(metric)
    assert {text.get_text() for text in texts} >= set(found.variants)
    assert not axis.xaxis_inverted() and axis.yaxis_inverted()  # a mean error is better when lower
    line = next(line for line in axis.lines if len(line.get_xdata()) == 2 and line.get_linestyle() == "-")
    means = sorted(
        (np.mean(VARIANTS[variant]["kind"]), np.mean(VARIANTS[variant]["size"])) for variant in ("plain sum", "size 0.3")
    )
    np.testing.assert_allclose(np.transpose([line.get_xdata(), line.get_ydata()]), means)
    star = next(line for line in axis.lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == pytest.approx((np.mean(ALONE["kind"]), np.mean(ALONE["size"])))
    hollow = [line for line in axis.lines if line.get_marker() == "D" and line.get_markerfacecolor() == "white"]
    assert len(hollow) == 1 and axis.get_legend() is None
    assert overlapping(metric) == ([], []) and small_letters(metric) == []


def segments_of(metric):
    """The lines from points to names, in pixels."""
    texts, axis = texts_of(metric)
    named = [text for text in texts if text.get_text().startswith("way")]
    starts = axis.transData.transform([text.xy for text in named])
    ends = axis.transAxes.transform([text.get_position() for text in named])
    return [tuple(map(tuple, pair)) for pair in zip(starts, ends)]


def side(a, b, c):
    """Whether `c` is to the left of the line from `a` to `b`, to its right, or on it."""
    product = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
    return np.sign(product) * (abs(product) > 1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_lines_to_the_names_of_a_front_do_not_cross(seed):
    rng = np.random.default_rng(seed)
    places = rng.uniform(size=(12, 2)) * [1.0, 0.15 if seed % 2 else 1.0]
    points = [Point(f"way {k}", "rule", None, list(place), [0.01] * 2, [0.0] * 2) for k, place in enumerate(places)]
    figure = draw_front(points, {"a": "loss", "b": "score"}, {"a": "min", "b": "max"}, 3, "test")
    segments = segments_of(figure)
    crossing = [
        (i, j)
        for (i, (a, b)), (j, (c, d)) in itertools.combinations(enumerate(segments), 2)
        if side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
    ]
    assert len(segments) == 12 and crossing == [] and overlapping(figure) == ([], [])


@pytest.mark.parametrize("heads", ["ab", "abc"])
def test_a_front_explains_only_the_marks_that_it_has(heads):
    def detail(base):
        points = [Point("rule", "rule", None, [1.0] * 3, [0.1] * 3, [0.1] * 3)]
        points.append(Point("rule, equal cost", "rule", base, [2.0] * 3, [0.1] * 3, [0.2] * 3))
        points = [point._replace(**{k: getattr(point, k)[: len(heads)] for k in Point._fields[3:]}) for point in points]
        figure = draw_front(points, dict.fromkeys(heads, "loss"), dict.fromkeys(heads, "min"), 3, "test")
        return " ".join(text.get_text() for text in texts_of(figure)[0])

    assert "at equal cost" in detail("rule") and "at equal cost" not in detail(None)


def test_front_of_three_heads_names_all_variants_apart():
    names, changes = [f"variant {k}" for k in range(9)], np.linspace(0.1, 0.11, 9)
    points = [Point(name, "rule", None, [1.0] * 3, [0.1] * 3, [0.0, 0.2, each]) for name, each in zip(names, changes)]
    points.append(Point("failed", "rule", None, [np.nan] * 3, [np.nan] * 3, [np.nan] * 3))
    figure = draw_front(points, dict.fromkeys("abc", "loss"), dict.fromkeys("abc", "min"), 3, "test")
    texts, axis = texts_of(figure)
    assert [text.get_text() for text in texts if text.get_text() in names] == names
    assert "failed" not in {text.get_text() for text in texts} and overlapping(figure) == ([], [])
    drawn = [line.get_ydata()[-1] for line in axis.lines if len(line.get_ydata()) == 3]
    np.testing.assert_allclose(drawn, changes)
