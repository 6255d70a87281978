"""Files in every dialect give the rows that were written, and what was found and left out is told."""

from __future__ import annotations

import csv
import gzip
import io
import itertools

import numpy as np
import pytest

from examples._command_line import InputError
from examples._rows import SEPARATORS, Dialect, read_table
from examples.seq2seq_price import command
from examples.seq2seq_price.batches import (
    Examples,
    Vectorizers,
    build_vocabulary,
    evaluation_batches,
    standardize_source,
    standardize_target,
    training_batches,
)
from examples.seq2seq_price.data import classes, load_data
from tests.helpers.cases import pairwise

pytestmark = pytest.mark.programs

COLUMNS = ["text", "meaning", "price_range"]
PLAIN = [["two chairs", "count[2]", "low"], ["un café", "count[1]", ""], ["", "count[0]", "high"]]
MARKED = [*PLAIN, ["a, b; c|d\te", "x", "low"], ['7 stools 18"', '"', "low"], ["one\ntwo", 'say "yes"', "high"]]
QUOTES_IN_TEXT = [
    *PLAIN, ['"Big" is what I want', "count[1]", "high"], ['"large chairs', "x", "low"], ['7 stools 18"', "y", "low"],
    ['he said "no"', '"', "low"],
]  # fmt: skip
BLANK = ["", "{0}{0}", " {0} {0} ", "\t " + "{0}\u00a0{0}", "{0}\u200b{0}\u2007"]


def text_of(rows, separator, quoting, end):
    file = io.StringIO()
    csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=end).writerows([COLUMNS, *rows])
    return file.getvalue()


def written(path, text, bom=False):
    content = text.encode("utf-8-sig" if bom else "utf-8")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def cells(rows):
    return [[row[name] for name in COLUMNS] for row in rows]


DIALECTS = pairwise(list(SEPARATORS), ["\n", "\r\n"], [False, True], ["rows.csv", "rows.tsv", "rows.txt.gz"])


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize(("separator", "end", "bom", "name"), DIALECTS)
def test_quotes_that_mark_cells(separator, end, bom, name, quoting, tmp_path):
    told = []
    path = written(tmp_path / name, text_of(MARKED, SEPARATORS[separator], quoting, end), bom)
    assert cells(read_table(path, COLUMNS, tell=told.append)) == MARKED
    assert told == [f"{len(MARKED)} rows of {path} (separated by {separator}s, quotes mark cells)"]
    few = written(tmp_path / name, text_of(PLAIN, SEPARATORS[separator], quoting, end), bom)
    assert cells(read_table(few, COLUMNS)) == PLAIN


@pytest.mark.parametrize(("separator", "end", "bom", "name"), DIALECTS)
def test_quotes_that_are_text(separator, end, bom, name, tmp_path):
    for number in range(1, len(QUOTES_IN_TEXT) + 1):  # whether any of them alone, or two, could be marks
        for rows in (QUOTES_IN_TEXT[:number], QUOTES_IN_TEXT[number - 1 :]):
            text = end.join(SEPARATORS[separator].join(row) for row in [COLUMNS, *rows])
            around = {'"large chairs', '7 stools 18"'} <= {row[0] for row in rows}  # two quotes around lines that are rows
            dialect = Dialect(quotes="text") if around and separator != "tab" else Dialect()
            assert cells(read_table(written(tmp_path / name, text, bom), COLUMNS, dialect)) == rows


@pytest.mark.parametrize("separator", SEPARATORS)
def test_two_quotes_around_lines_that_are_rows_are_text_only_between_tabs(separator, tmp_path):
    lines, told, sign = [['"large', "x", "low"], ["a chair", "y", "low"], ['18"', "z", "high"]], [], SEPARATORS[separator]
    path = written(tmp_path / "rows.txt", "\n".join(sign.join(row) for row in [COLUMNS, *lines]))
    joined = [["\n".join(sign.join(row) for row in [*lines[:2], ["18"]])[1:], "z", "high"]]
    expected, form = (lines, "are text") if separator == "tab" else (joined, "mark cells")
    assert cells(read_table(path, COLUMNS, tell=told.append)) == expected
    assert told == [f"{len(expected)} rows of {path} (separated by {separator}s, quotes {form})"]
    assert cells(read_table(path, COLUMNS, Dialect(quotes="cells"))) == joined
    assert cells(read_table(path, COLUMNS, Dialect(quotes="text"))) == lines


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize(("separator", "end"), pairwise([name for name in SEPARATORS if name != "tab"], ["\n", "\r\n"]))
def test_a_marked_cell_is_whole_whatever_its_lines_look_like(separator, end, quoting, tmp_path):
    """Also if each of its lines has as many separators as a row."""
    parts = ["one", SEPARATORS[separator], "\n", end, '"', " ", "two"]
    texts = ["".join(each) for each in itertools.product(parts, parts, parts)]
    for text in [f"a{SEPARATORS[separator] * 2}{text}{end}c" for text in texts]:
        rows = [["plain", "x", "low"], [text, "y", "high"]]
        path = written(tmp_path / "rows.csv", text_of(rows, SEPARATORS[separator], quoting, end))
        assert cells(read_table(path, COLUMNS)) == rows


ESCAPED = [
    *PLAIN, ['the "best" chairs', "x", "low"], ['"', '""', "low"], ["C:\\new", "y", "low"], ['a, "b"; c|d\te', "z", "high"],
    ['one\ntwo "three"', "x", "low"],
]  # fmt: skip


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize(("separator", "end", "bom", "name"), DIALECTS)
def test_quotes_that_backslashes_mark(separator, end, bom, name, quoting, tmp_path):
    file, told = io.StringIO(), []
    options = {"doublequote": False, "escapechar": "\\", "lineterminator": end, "quoting": quoting}
    csv.writer(file, delimiter=SEPARATORS[separator], **options).writerows([COLUMNS, *ESCAPED])
    path = written(tmp_path / name, file.getvalue(), bom)
    if quoting == csv.QUOTE_ALL:  # otherwise a cell may have backslashes and no marks around it
        assert cells(read_table(path, COLUMNS, tell=told.append)) == ESCAPED
        assert "backslashes mark quotes" in told[0]
    assert cells(read_table(path, COLUMNS, Dialect(separator, "escaped"))) == ESCAPED


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        ([r'"the \"best\" chairs",x,low'], [r'the "best" chairs']),
        ([r'"the \"best\" chairs, and stools",x,low'], [r'the "best" chairs, and stools']),
        ([r'"C:\dir \"a\" \\",x,low', "plain,x,low"], ['C:\\dir "a" \\', "plain"]),
        ([r'"in C:\",x,low', r'"two ""words""",y,low'], ["in C:\\", 'two "words"']),  # quotes are doubled here
    ],
)
def test_a_backslash_before_a_quote(lines, texts, tmp_path):
    path = written(tmp_path / "rows.csv", "\n".join([",".join(COLUMNS), *lines]))
    assert [row["text"] for row in read_table(path, COLUMNS)] == texts


def test_a_backslash_that_may_be_a_mark_or_text_is_asked_for(tmp_path):
    path = written(tmp_path / "rows.csv", ",".join(COLUMNS) + '\nsaid \\"no\\",x,low\n')
    with pytest.raises(InputError, match=r"what a backslash before a quote is\. Received: .*said .*--quotes escaped"):
        read_table(path, COLUMNS)
    for quotes, text in (("escaped", 'said "no"'), ("cells", 'said \\"no\\"'), ("text", 'said \\"no\\"')):
        assert read_table(path, COLUMNS, Dialect(quotes=quotes))[0]["text"] == text


def test_quotes_around_whole_cells(tmp_path):
    row = ['"Big"', "x", "low"]
    for name, separator, expected in (("a.csv", ",", "Big"), ("a.tsv", "\t", '"Big"')):
        path = written(tmp_path / name, "\n".join(separator.join(each) for each in (COLUMNS, row, *PLAIN)))
        assert read_table(path, COLUMNS)[0]["text"] == expected
        assert read_table(path, COLUMNS, Dialect(quotes="text"))[0]["text"] == '"Big"'
        assert read_table(path, COLUMNS, Dialect(quotes="cells"))[0]["text"] == "Big"


@pytest.mark.parametrize(("separator", "blank"), list(itertools.product(SEPARATORS, BLANK)))
def test_rows_of_nothing_are_left_out(separator, blank, tmp_path):
    lines = [SEPARATORS[separator].join(row) for row in [COLUMNS, *PLAIN]]
    for place in range(2, 5):
        given, told = [*lines[:place], blank.format(SEPARATORS[separator]), *lines[place:], "", ""], []
        path = written(tmp_path / "rows.csv", "\n".join(given))
        assert cells(read_table(path, COLUMNS, tell=told.append)) == PLAIN
        assert told[0].startswith(f"3 rows of {path} (separated by {separator}s); ")
        assert told[0].endswith(" blank rows left out")


def test_white_space_and_headers(tmp_path):
    path = written(
        tmp_path / "rows.csv", "\ufeff id ; text\u00a0;\u00a0price_range;meaning\n1; a\u00a0 chair ;20\u202f€;x \n"
    )
    assert cells(read_table(path, COLUMNS)) == [["a  chair", "x", "20 €"]]
    path = written(tmp_path / "rows.csv", '"text, long"|"meaning"|price_range\na|b|c\n')
    assert read_table(path, ["text, long"]) == [{"text, long": "a"}]
    path = written(tmp_path / "one.csv", 'text\n"a\nb"\nc\n')
    assert read_table(path, ["text"]) == [{"text": "a\nb"}, {"text": "c"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"text;meaning\na;b\n",
            r"must have the column 'price_range'\. Received: the columns 'text', 'meaning', separated by semi",
        ),
        (b"text:meaning:price_range\na:b:c\n", r"'text:meaning:price_range', separated by commas.* --separator"),
        (b"text;meaning;price_range\na;b;c\nd;e\n", r"3 fields in every row.* 2 fields .* line 3 \(separated by semicolons"),
        (b'text,meaning,price_range\n"a, b",c,d\n"e" f,"g, h",i\n', r"must be CSV or TSV\. .*--quotes text if quotes are"),
        (b"text,meaning,price_range\n , ,\n", r"must have rows below its column names"),
        ("text,meaning,price_range\na,b,c\n".encode("utf-16"), r"must be UTF-8 text\. Received: .* 0xff\. Save it as UTF-8"),
        (
            "text,meaning,price_range\né,b,c\n".encode("latin-1"),
            r"must be UTF-8 text\. Received: .* 0xe9\. Save it as UTF-8",
        ),
    ],
)
def test_what_is_said_of_files_that_cannot_be_read(content, message, tmp_path):
    (tmp_path / "rows.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_table(tmp_path / "rows.csv", COLUMNS)


def loaded(path, *arguments):
    told = []
    options = command.parse(["--train", str(path), "--dev", str(path), *arguments])
    return load_data(options, told.append), told


def test_empty_cells_of_each_column(tmp_path):
    rows = [["a", "x", "low"], ["b", "", "high"], ["c", "y", ""], ["", "z", "low"], ["d", "", ""], ["", "", "low"]]
    path = written(tmp_path / "rows.csv", text_of(rows, ",", csv.QUOTE_MINIMAL, "\n"))
    data, told = loaded(path)
    assert data.splits["train"].texts == ["a", "b", "c"] and data.splits["train"].targets == ["x", "", "y"]
    assert data.splits["dev"].labels["price"].tolist() == [1, 0, -1]
    assert (
        told[0]
        == told[1]
        == (
            f"6 rows of {path} (separated by commas); 2 rows without `text` left out; 1 rows without anything to learn left out; "
            "1 rows without `meaning` train the other heads only"
        )
    )
    data, _ = loaded(path, "--missing", "class")
    assert data.splits["train"].texts == ["a", "b", "c", "d"]
    data, told = loaded(path, "--separator", "comma", "--quotes", "text")
    assert data.splits["train"].texts == ["a", "b", "c"]
    empty = written(tmp_path / "empty.csv", text_of([["a", "", "low"], ["b", "", "high"]], ",", csv.QUOTE_MINIMAL, "\n"))
    with pytest.raises(
        InputError, match=r"The column `meaning` must contain a target in some training row\. Received: only"
    ):
        loaded(empty)
    empty = written(tmp_path / "empty.csv", text_of([["", "x", "low"]], ",", csv.QUOTE_MINIMAL, "\n"))
    with pytest.raises(InputError, match=r"must have rows with a text in the column `text` .* Received: 1 rows without"):
        loaded(empty)


def test_a_row_without_a_reply_has_no_target():
    texts, replies = ["a chair", "two table", "a chair", "a table"], ["count[1] chair", "", " ", "x table"]
    read = Vectorizers(build_vocabulary(texts, standardize_source), build_vocabulary(replies, standardize_target))
    examples = Examples(texts, replies, {"price": np.array([0, 1, -1, 0], np.int32)})
    training, _ = training_batches(examples, read, 2, seed=0)
    for batches in (training, evaluation_batches(examples, read, 3)):
        rows = [row for _, targets in batches for row in targets["reply"].numpy()]
        assert sum(bool(row.any()) for row in rows) == 2
        assert all(np.count_nonzero(row == 3) == row.any() for row in rows)
        assert all(targets["reply"].shape[1] for _, targets in batches)


def test_options_of_a_table(capsys):
    for arguments in (["--separator", "tab"], ["--quotes", "text"]):
        with pytest.raises(SystemExit):
            command.parse(arguments)
        assert "requires --train" in capsys.readouterr().err


def rated(tmp_path, lines, *arguments):
    """The data of rows with a text, a meaning, a rating and a price."""
    path = written(tmp_path / "rows.csv", "\n".join(["text,meaning,rating,price_range", *lines]))
    return loaded(path, *arguments)[0]


CELLS = ["a,x,3,low", 'b,"two\nlines",n/a,high', "c,y,,low", "d,z,n/a,n/a", "e,z,soon,-", "f,z,4.5,-"]


def test_all_cells_that_are_no_numbers_are_named_with_their_lines(tmp_path):
    with pytest.raises(InputError) as raised:
        rated(tmp_path, CELLS, "--number", "rating")
    message = str(raised.value)
    assert "rows.csv` must have numbers or empty cells in the column `rating`. Received: " in message
    assert "'n/a' on lines 4, 6, 'soon' on line 7. " in message and "--missing-values n/a,soon" in message
    many = [f"a,x,n/a,{'low' if row % 2 else 'high'}" for row in range(40)]
    with pytest.raises(InputError, match=r"'n/a' on lines 2, 3, 4, 5, 6 and 35 more\."):
        rated(tmp_path, many, "--number", "rating")


def test_values_that_mean_that_a_label_is_missing(tmp_path):
    data = rated(tmp_path, CELLS, "--number", "rating", "--missing-values", "n/a,soon,-")
    train = data.splits["train"]
    np.testing.assert_array_equal(np.isnan(train.labels["rating"]), [False, True, True, True, True, False])
    np.testing.assert_array_equal(train.labels["price"], [1, 0, 1, -1, -1, -1])
    assert classes(data) == ["price_range: no label 3, low 2, high 1"]
    data = rated(tmp_path, CELLS, "--missing", "class")
    assert classes(data) == ["price_range: low 2, - 2, high 1, n/a 1"]  # so that a class that is none is seen


def test_many_classes_are_not_all_listed(tmp_path):
    data = rated(tmp_path, [f"a,x,1,class {row // 2}" for row in range(50)])
    (line,) = classes(data)
    assert line.startswith("price_range: class 0 2, class 1 2, ") and line.endswith(" and 5 more")


def test_missing_values_are_those_of_files(capsys):
    with pytest.raises(SystemExit):
        command.parse(["--missing-values", "n/a"])
    assert (
        "--missing-values requires --train. Pass the file to train on, or omit --missing-values." in capsys.readouterr().err
    )
