"""The site is built without a warning, needs nothing from elsewhere, and works in a browser where there is one."""

from __future__ import annotations

import functools
import html
import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from multihead import MultiHeadTrainer, balancing, weighting
from tests.helpers.browser import CHROMIUM, Browser
from tests.helpers.sources import ROOT

has_mkdocs = all(importlib.util.find_spec(name) for name in ("material", "mkdocstrings"))
pytestmark = [pytest.mark.programs, pytest.mark.skipif(not has_mkdocs, reason="needs the `docs` extra")]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
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


def test_every_relative_link_leads_to_a_file_and_an_anchor_of_the_site(site: Path) -> None:
    sources = {page: (site / page).read_text(encoding="utf-8") for page in pages(site)}
    identifiers = {page: set(re.findall(r'\s(?:id|name)="?([^"\s>]+)', source)) for page, source in sources.items()}
    broken, followed = [], 0
    for page, source in sources.items():
        if page == "404.html":  # its links are absolute: it is shown at any address
            continue
        for link in re.findall(r'<(?:a|img|link|script)\s[^>]*?(?:href|src)="?([^"\s>]+)', source):
            path, _, anchor = html.unescape(link).partition("#")
            if re.match(r"[a-z]+:|//", link):
                continue
            followed += 1
            target = ((site / page).parent / urllib.parse.unquote(path)).resolve() if path else site / page
            target = target / "index.html" if target.is_dir() else target
            name = target.relative_to(site.resolve()).as_posix() if target.is_relative_to(site.resolve()) else str(target)
            is_page = name in identifiers
            if not target.is_file() or (anchor and is_page and urllib.parse.unquote(anchor) not in identifiers[name]):
                broken.append((page, link))
    assert broken == [] and followed > 1000


def test_every_method_has_a_page_with_formula_value_cost_and_paper(site: Path) -> None:
    for package, base in ((balancing, balancing.Balancer), (weighting, weighting.Weighting)):
        for name in package.__all__:
            method = getattr(package, name)
            if not isinstance(method, type) or method is base:
                continue
            text = text_of(site, f"reference/{package.__name__.rpartition('.')[2]}/{name}")
            assert all(word in text for word in ("Formula", ">>> ", "extra cost:", "paper:")), name


def test_reference_has_public_names_only(site: Path) -> None:
    for page in pages(site):
        if page.startswith("reference/"):
            ids = re.findall(r'id="?(multihead[\w.]*)', (site / page).read_text(encoding="utf-8"))
            private = [name for name in ids if re.search(r"\._[a-z]\w*$|\.get_config$|\.train_step$", name)]
            assert private == [], page


def test_reference_of_the_trainer_shows_what_users_call(site: Path) -> None:
    text = (site / "reference" / "multihead" / "index.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'id="?(?:multihead\.MultiHeadTrainer\.)?(\w+)', text))
    assert {"fit", "save", "save_weights", "load_weights", "load_model", "compute_gradients"} <= shown
    of_keras = {name for name in dir(MultiHeadTrainer) if name.endswith(("_step", "_function", "_config", "_own_variables"))}
    assert len(of_keras) > 10 and not shown & of_keras


def test_version_and_repository_are_shown(site: Path) -> None:
    for page in pages(site):
        source = (site / page).read_text(encoding="utf-8")
        assert "multihead 0." in source and f"{ADDRESS}" in source, page
    assert f"{ADDRESS}/blob/main/tests/" in (site / "index.html").read_text(encoding="utf-8")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


CUT = "[...document.querySelectorAll('pre > code')].filter(c => c.scrollWidth > c.clientWidth).map(c => c.innerText)"


@needs_browser
def test_every_page_loads_without_an_error_with_its_pictures_and_whole_lines_of_code(
    site: Path, address: str, browser: Browser
) -> None:
    for page in pages(site):
        if page == "404.html":
            continue
        assert browser.open(address + page) == [], page
        assert [each for each in browser.requests() if not each.startswith((address, "data:"))] == [], page
        browser.run("document.querySelectorAll('img').forEach(i => i.loading = 'eager')")
        browser.wait_for("[...document.images].every(i => i.complete)")
        assert browser.run("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)") == [], page
        assert browser.run(CUT) == [], page


@needs_browser
@pytest.mark.parametrize(
    ("word", "page"), [("UPGrad", "reference/balancing/UPGrad/"), ("freeze", "finetuning/"), ("ignore_label", "labels/")]
)
def test_search_finds(address: str, browser: Browser, word: str, page: str) -> None:
    browser.open(address)
    browser.run("document.querySelector('input.md-search__input').focus()")
    browser.call("Input.insertText", text=word)
    found = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    browser.wait_for(f"({found}).length > 0")
    assert any(f"/{page}" in link for link in browser.run(found))


@needs_browser
def test_wide_tables_scroll_by_themselves_on_a_phone_and_say_so(address: str, browser: Browser) -> None:
    browser.set_width(390)
    try:
        browser.open(address + "choosing/")
        assert browser.run("document.documentElement.scrollWidth") <= 390
        browser.wait_for("document.querySelector('.wide-table')")
        note = "getComputedStyle(document.querySelector('.wide-table'), '::before').content"
        assert "Scroll the table" in browser.run(note)
    finally:
        browser.set_width(1280)
