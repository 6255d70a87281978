"""The site is built without a warning, needs nothing from elsewhere, and works in a browser where there is one."""

from __future__ import annotations

import functools
import html
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multihead import MultiHeadTrainer, balancing, weighting
from tests.helpers.sources import ROOT

has_mkdocs = all(importlib.util.find_spec(name) for name in ("material", "mkdocstrings"))
pytestmark = [pytest.mark.programs, pytest.mark.skipif(not has_mkdocs, reason="needs the `docs` extra")]
ADDRESS = "https://example.org/owner/repository"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "GITHUB_SERVER_URL": "https://example.org",
        "GITHUB_REPOSITORY": "owner/repository",
        "NO_MKDOCS_2_WARNING": "1",
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def pages(site: Path) -> list[str]:
    return [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]


def text_of(site: Path, page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", (site / page / "index.html").read_text(encoding="utf-8")))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in pages(site):
        source = (site / page).read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="?([^"\s>]+)', source)
        loaded += re.findall(r'<link[^>]*rel="?(?:stylesheet|icon|preconnect|prefetch)[^>]*href="?([^"\s>]+)', source)
        assert loaded and not [address for address in loaded if re.match(r"(https?:)?//", address)], page


def test_every_method_has_a_page_with_formula_value_cost_and_paper(site: Path) -> None:
    for package, base in ((balancing, balancing.Balancer), (weighting, weighting.Weighting)):
        for name in package.__all__:
            method = getattr(package, name)
            if not isinstance(method, type) or method is base:
                continue
            text = text_of(site, f"reference/{package.__name__.rpartition('.')[2]}/{name}")
            assert all(word in text for word in ("Formula", ">>> ", "extra passes:", "paper:")), name


def test_reference_has_public_names_only(site: Path) -> None:
    for page in pages(site):
        if page.startswith("reference/") and page != "reference/types/index.html":
            ids = re.findall(r'id="?(multihead[\w.]*)', (site / page).read_text(encoding="utf-8"))
            private = [name for name in ids if re.search(r"\._[a-z]\w*$|\.get_config$|\.train_step$", name)]
            assert private == [], page


def test_reference_of_the_trainer_shows_what_users_call_with_compile_first(site: Path) -> None:
    text = (site / "reference" / "multihead" / "index.html").read_text(encoding="utf-8")
    shown = re.findall(r'<h3[^>]* id="?(?:multihead\.MultiHeadTrainer\.)?(\w+)', text)
    listed = (ROOT / "docs" / "api.txt").read_text(encoding="utf-8")
    public = set(re.findall(r"^multihead\.MultiHeadTrainer\.(\w+)", listed, re.MULTILINE)) - {"metrics"}
    assert shown[0] == "compile" and public | {"load_model"} <= set(shown) and len(public) > 25
    of_keras = {name for name in dir(MultiHeadTrainer) if name.endswith(("_step", "_function", "_config", "_own_variables"))}
    assert len(of_keras) > 10 and not set(shown) & of_keras
    common, special = text_of(site, "reference/multihead").partition("For special cases:")[::2]
    assert "micro_batches" in common and "balance_every" in special


def test_types_in_signatures_are_links_to_what_they_mean(site: Path) -> None:
    types = (site / "reference" / "types" / "index.html").read_text(encoding="utf-8")
    explained, linked = set(re.findall(r'<h2 id="?(multihead[\w.]+)', types)), set()
    for page in pages(site):
        source = (site / page).read_text(encoding="utf-8") if page.startswith("reference/") else ""
        linked |= set(re.findall(r'href="?[./]*types/#(multihead[\w.]+)', source))
        assert not re.findall(r'<span title="?multihead\._ground\.types\.\w+', source), page
    assert (
        {"multihead._ground.types.Nested", "multihead._ground.types.Config", "multihead.rates.Rate"} <= linked <= explained
    )


def test_what_users_read_and_do_not_create_has_no_signature(site: Path) -> None:
    text = text_of(site, "reference/diagnosis").partition("\n        What")[2]
    order = [text.index(name) for name in ("findings", "suggestion", "equal_weights", "signal_to_noise")]
    assert order == sorted(order) and "Diagnosis(" not in text_of(site, "reference/diagnosis")


def test_each_page_has_a_description_and_a_copy_for_readers_that_are_programs(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    written = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    assert len(written) > 20
    for path in written:
        assert f"]({path}): " in listed and (site / path).read_text(encoding="utf-8").lstrip("-").strip(), path
    shown = [
        re.search(r'name="?description"? content="([^"]+)"', (site / page).read_text(encoding="utf-8"))
        for page in pages(site)
    ]
    texts = [match[1] for match in shown if match]
    assert len(texts) >= len(shown) - 1 and len(set(texts)) == len(texts) > 80  # 404.html has none


@pytest.mark.parametrize(
    "sought",
    ["hyperparameter", "regression", "LoRA", "early stopping", "multi-task", "loss weights", "ONNX", "missing labels"],
)
def test_the_search_has_what_readers_look_for_on_a_page_that_explains_it(site: Path, sought: str) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    places = [entry["location"] for entry in index if sought.lower() in f"{entry['title']} {entry['text']}".lower()]
    assert any(not place.startswith(("changelog", "reference", "research", "benchmarks")) for place in places), places


def test_the_notebook_is_a_page_with_what_it_prints_and_draws(site: Path) -> None:
    text = text_of(site, "notebooks/first_steps")
    assert "MultiHeadTrainer" in text and '"cell_type"' not in text
    assert re.search(r"^balanced: \d+% exact replies, \d+% right prices$", text, re.MULTILINE)
    source = (site / "notebooks" / "first_steps" / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'src="?([\w./]+first_steps_\d\.png)', source)
    assert len(pictures) == 2
    for picture in pictures:
        assert (site / "notebooks" / "first_steps" / picture).resolve().read_bytes().startswith(b"\x89PNG")


def test_the_research_behind_the_advice_is_on_the_site(site: Path) -> None:
    folder = site / "research" / "pace"
    (picture,) = re.findall(r'src="?([\w./]+pace\.png)', (folder / "index.html").read_text(encoding="utf-8"))
    assert "Delta-m" in text_of(site, "research/results") and (folder / picture).resolve().stat().st_size > 5000
    assert 'href="../research/' in (site / "choosing" / "index.html").read_text(encoding="utf-8").replace(
        "href=..", 'href="..'
    )


def test_version_and_repository_are_shown(site: Path) -> None:
    for page in pages(site):
        source = (site / page).read_text(encoding="utf-8")
        assert "multihead 0." in source and f"{ADDRESS}" in source, page
    assert f"{ADDRESS}/blob/main/tests/" in (site / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of Playwright or of the system, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    with playwright.sync_playwright() as started:
        own = Path(started.chromium.executable_path)
        path = str(own) if own.exists() else shutil.which("chromium")
        if path is None:
            pytest.skip("needs `playwright install chromium`")
        browser = started.chromium.launch(executable_path=path)
        yield browser
        browser.close()


CUT = "[...document.querySelectorAll('pre > code')].filter(c => c.scrollWidth > c.clientWidth).map(c => c.innerText)"


def test_every_page_loads_without_an_error_with_whole_lines_of_code(site: Path, address: str, browser: Any) -> None:
    page, wrong = browser.new_page(), []
    page.on("pageerror", wrong.append)
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("request", lambda request: wrong.extend([] if request.url.startswith((address, "data:")) else [request.url]))
    for name in pages(site):
        if name != "404.html":
            page.goto(address + name, wait_until="networkidle")
            assert wrong == [] and page.evaluate(CUT) == [], name


def test_search_finds_and_a_phone_scrolls_wide_tables_alone(address: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(address + "choosing/")
    page.wait_for_selector(".wide-table")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page = browser.new_page()
    page.goto(address)
    page.fill("input.md-search__input", "UPGrad")
    page.wait_for_selector(".md-search-result__link")
    links = page.eval_on_selector_all(".md-search-result__link", "links => links.map(link => link.href)")
    assert any("/reference/balancing/UPGrad/" in link for link in links)


BROKEN = """[...document.querySelectorAll('td code, th code')].flatMap(code => {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), broken = [];
  while (walker.nextNode()) {
    for (const word of walker.currentNode.data.matchAll(/\\w{1,16}/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(part => Math.round(part.top))).size > 1) { broken.push(word[0]); }
    }
  }
  return broken;
})"""
OUTSIDE = """[...document.querySelectorAll('.doc-section-item td')].filter(
  cell => cell.getBoundingClientRect().right > innerWidth).map(cell => cell.innerText)"""
EXTRA = """[...document.querySelectorAll('.md-content h1, .md-content h2, .md-content h3')].filter(heading => {
  const range = document.createRange();
  range.selectNodeContents(heading);
  heading.querySelectorAll('.headerlink').forEach(link => range.setEndBefore(link));
  return heading.getBoundingClientRect().height > range.getBoundingClientRect().height + 15;
}).map(heading => heading.innerText)"""


@pytest.mark.parametrize("name", ["watching", "migration/addons", "labels", "benchmarks", "reference/multihead"])
def test_a_phone_shows_whole_names_arguments_and_no_empty_lines(address: str, browser: Any, name: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(f"{address}{name}/", wait_until="load")
    assert page.evaluate("document.querySelectorAll('td code').length") > 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert (page.evaluate(BROKEN), page.evaluate(OUTSIDE), page.evaluate(EXTRA)) == ([], [], [])
    page.close()


def test_code_in_texts_is_copied_as_it_is_written(site: Path, address: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(f"{address}watching/", wait_until="load")
    shown = page.evaluate("[...document.querySelectorAll('.md-content :not(pre) > code')].map(code => code.textContent)")
    source = (site / "watching" / "index.html").read_text(encoding="utf-8")
    written = re.findall(r"(?<!<pre>)<code>((?:(?!</code>).)*)</code>", source.partition("<article")[2])
    assert shown == [html.unescape(text) for text in written if "<" not in text] and len(shown) > 50
    page.close()
