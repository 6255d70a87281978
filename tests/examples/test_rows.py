"""Rows: files as people have them, what is said of files that cannot be used, and the workshop's orders."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from examples._command_line import InputError
from examples._orders import draw_rows
from examples._rows import read_table

pytestmark = pytest.mark.programs

TRAIN = draw_rows(3000, held_out=False, seed=3)
HELD_OUT = draw_rows(300, held_out=True, seed=3)


def test_the_same_seed_gives_the_same_rows_everywhere():
    rows = draw_rows(50, held_out=False, seed=7)
    assert rows == draw_rows(50, held_out=False, seed=7)
    assert rows != draw_rows(50, held_out=False, seed=8)
    without_tags = [sorted((column, cell) for column, cell in row.items() if column != "tags") for row in rows]
    digest = hashlib.sha256(repr(without_tags).encode()).hexdigest()
    assert digest == "4dbbd4e7964cf22830ae6b3388b2477dfdcc935e365db979d8bdc5b793b4c1b7"


def test_no_text_twice_and_no_order_on_both_sides():
    texts = [row["text"] for row in TRAIN + HELD_OUT]
    assert len(TRAIN) == 3000 and len(HELD_OUT) == 300
    assert len(set(texts)) == len(texts)
    assert not {row["order"] for row in TRAIN} & {row["order"] for row in HELD_OUT}


def test_quotes_line_breaks_blanks_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffid,"the text",label\r\n1,"a, ""b""\r\nc",£5\r\n\r\n2, d ,\r\n'.encode())
    assert read_table(path, ["the text", "label"]) == [
        {"the text": 'a, "b"\r\nc', "label": "£5"},
        {"the text": "d", "label": ""},
    ]


@pytest.mark.parametrize("length", [131_072, 131_073, 1_000_000])
@pytest.mark.parametrize("mark", ["", '"'])
def test_a_cell_of_any_length(tmp_path, mark, length):
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\n{mark}{'x' * length}{mark},1\n", encoding="utf-8")
    assert read_table(path, ["text"]) == [{"text": "x" * length}]


@pytest.mark.parametrize(("name", "line_end"), [("rows.tsv", "\n"), ("rows.tsv.gz", "\r\n"), ("rows.txt", "\n")])
def test_tabs_and_gzip(tmp_path, name, line_end):
    content = line_end.join(["text\tlabel", "a, b\tlow", "é\thigh", ""]).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read_table(tmp_path / name, ["label", "text"]) == [
        {"label": "low", "text": "a, b"},
        {"label": "high", "text": "é"},
    ]


def test_gzip_is_known_by_its_content(tmp_path):
    (tmp_path / "rows.csv").write_bytes(gzip.compress(b"text\nx\n"))
    assert read_table(tmp_path / "rows.csv", ["text"]) == [{"text": "x"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"must have a first row with column names\. Received: an empty file"),
        (b"text,label\n", r"must have rows below its column names\. Received: none"),
        (
            b"text,price\nx,1\n",
            r"must have the column 'label'\. Received: the columns 'text', 'price', separated by commas\. Rename",
        ),
        (b"text,label,label\nx,1,2\n", r"must have each column once\. Received: 'label' more than once"),
        (b"text,label\nx,1\ny\n", r"must have 2 fields in every row.*Received: 1 fields in the row that ends on line 3"),
        (b"text,label\n\xff\xfe,1\n", r"must be UTF-8 text\. Received: a file with the invalid byte 0xff"),
        (gzip.compress(b"text,label\nx,1\n" * 99, mtime=0)[:30], r"must be a complete gzip file"),
        (b'text,label\n"' + b"x\n" * 100_000, r"must be CSV or TSV\. Received: unexpected end of data"),
    ],
)
def test_what_is_said_of_a_bad_file(tmp_path, content, message):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        read_table(path, ["text", "label"])
    assert str(path) in str(raised.value)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv` must be a readable file\. Received: No such file"):
        read_table(tmp_path / "none.csv", ["text"])
    with pytest.raises(InputError, match=r"must be a readable file\. Received: Is a directory"):
        read_table(tmp_path, ["text"])
