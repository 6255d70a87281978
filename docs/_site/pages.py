"""The pages of the site that are written by a program: the reference, and the repository's own pages.

A hook of MkDocs. It reads sources and never imports the package, so that a build needs no TensorFlow.
"""

from __future__ import annotations

import ast
import base64
import configparser
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Pages of the repository that the site shows too, and their pictures.
COPIED = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "benchmarks.md": "benchmarks/README.md",
    "research/index.md": "benchmarks/research/README.md",
    "research/results.md": "benchmarks/research/results.md",
    "research/pace.md": "benchmarks/research/pace.md",
    "research/methods.md": "benchmarks/research/methods.md",
}
# The public modules, in the order of the reference. Modules of methods have a page for each method.
MODULES = {
    "multihead": "The trainer",
    "multihead.balancing": "Balancers",
    "multihead.weighting": "Weightings",
    "multihead.schedules": "Schedules",
    "multihead.losses": "Losses",
    "multihead.scaling": "Scaling of targets",
    "multihead.clipping": "Clipping",
    "multihead.accumulation": "Accumulation",
    "multihead.callbacks": "Callbacks",
    "multihead.telemetry": "Statistics in the logs",
    "multihead.diagnosis": "Diagnosis",
    "multihead.comparison": "Comparison",
    "multihead.plots": "Plots",
    "multihead.models": "Reference models",
    "multihead.models.search": "Search",
    "multihead.models.crf": "Conditional random field",
    "multihead.testing": "Checks of your own methods",
}
# The members of the trainer, in the order in which users need them.
TRAINER = {
    "Heads and options": "compile from_model add_head remove_head set_weight set_idle heads options",
    "Training and evaluation": (
        "fit evaluate predict diagnose summary train_on_batch test_on_batch predict_on_batch metrics_names"
    ),
    "Saving and exporting": "save load_model save_weights load_weights to_keras export to_json",
    "Custom training loops": (
        "compute_gradients apply_gradients head_gradients get_metrics_result num_updates update_count stage update_spec "
        "log_metrics weights"
    ),
    "Of Keras, with limits": "add_loss add_metric",
}
# The modules whose aliases signatures name.
ALIASES = ("_ground.types", "rates", "heads._value", "heads._reads", "scaling", "plots")
METHODS = {"multihead.balancing": "Balancer", "multihead.weighting": "Weighting"}
# What follows the trainer: Keras's function that loads it, which is no name of this package.
LOADING = """
### load_model

```python
keras.models.load_model(filepath, custom_objects=None, compile=True)
```

Keras's own function loads what `MultiHeadTrainer.save` has saved: a trainer with its heads, the options of `compile`, the
weights, and the state of the optimizer, of methods and of dropout. Import `multihead` before it is called.

- `filepath`: the path, which ends in `.keras`.
- `custom_objects`: classes and functions of your own, by name. Those that are registered with
  `keras.saving.register_keras_serializable` are found without it.
- `compile`: whether to restore the options of `compile` and the state of the optimizer.

`MultiHeadTrainer.load_weights` loads weights alone. [`callbacks.Checkpoint`](callbacks.md#multihead.callbacks.Checkpoint)
resumes a run that was stopped.
"""
LANDSCAPE = ROOT / "docs" / "gallery" / "landscape"
NOTEBOOK = "notebooks/first_steps"
SHOWN: dict[str, tuple[str, str, str]] = {}
"""Title, description and Markdown of the pages that are written by hand, by their paths."""


# What the sources say


def path_of(module: str) -> Path | None:
    """The file of a module; None if there is none."""
    parts = module.replace("multihead.models", "models").split(".")
    for path in (ROOT.joinpath(*parts, "__init__.py"), ROOT.joinpath(*parts).with_suffix(".py")):
        if path.exists():
            return path
    return None


def public_names(module: str) -> list[str]:
    """`__all__` of a module, without submodules and the version."""
    path = path_of(module)
    source = "" if path is None else path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names = ast.literal_eval(node.value)
            names = [name for name in names if path_of(f"{module}.{name}") is None and not name.startswith("_")]
            return sorted(names, key=lambda name: (name != "MultiHeadTrainer", name != "Head", name.lower()))
    raise ValueError(f"`{module}` must be a module that defines `__all__`. Received: {path}.")


def is_method(module: str, name: str) -> bool:
    """Whether a public name is a balancer or weighting, with a page of its own."""
    return module in METHODS and name[0].isupper() and name != METHODS[module]


def rows_of_methods() -> dict[str, dict[str, str]]:
    """The rows of the tables in `docs/choosing.md`, by the name of the method."""
    rows: dict[str, dict[str, str]] = {}
    head: list[str] = []
    for line in (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("| `balancing.`") or line.startswith("| `weighting.`"):
            head = cells
        elif line.startswith("| `"):
            rows[cells[0].split("`")[1]] = dict(zip(head[1:], cells[1:]))  # a mark may follow the name
    return rows


# The reference


def directive(path: str, *options: str) -> str:
    """The line that mkdocstrings replaces by the documentation of an object."""
    lines = "".join(f"      {option}\n" for option in options)
    return f"::: {path}\n" + (f"    options:\n{lines}" if options else "")


def page_of_method(module: str, name: str, row: dict[str, str]) -> str:
    """The page of a balancer or weighting."""
    facts = "".join(f"- **{key}**: {value}\n" for key, value in row.items())
    call = f'```python\ntrainer.compile(optimizer, {METHODS[module].lower()}="{name}")\n```\n'
    said = json.dumps(f"{name}, a {METHODS[module].lower()}: fixes {row.get('fixes')}; {row.get('paper')}")
    text = f"---\ndescription: {said}\n---\n\n" + directive(f"{module}.{name}", "heading_level: 1")
    text += f"\n## At a glance\n\n{call}\n{facts}"
    if (LANDSCAPE / f"{name}.png").exists():
        text += (
            "\n## On the toy landscape\n\n"
            f"![Paths of {name} from five starting points](../../gallery/landscape/{name}.png){{ width=420 }}\n\n"
            "Two losses of two parameters, from the papers of CAGrad and Nash-MTL; their Pareto front is the yellow line. "
            "Green paths end on it, red ones do not. `python -m examples.toy_landscape` draws it: see "
            "[the gallery](../../gallery.md).\n"
        )
    return text


def page_of_module(module: str, title: str) -> str:
    """The page of a module: its methods as a list, everything else in full."""
    names = public_names(module)
    short = module.rpartition(".")[2]
    said = (ast.get_docstring(ast.parse(path_of(module).read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    text = f"---\ndescription: {json.dumps(description_of(said))}\n---\n\n# {title}\n\n"
    text += directive(module, "show_root_heading: false", "show_root_toc_entry: false", "members: false")
    methods = [name for name in names if is_method(module, name)]
    if methods:
        text += "\n## Methods\n\n" + "".join(f"- [{name}]({short}/{name}.md)\n" for name in methods)
        text += "\nWhich one: [choosing a method](../choosing.md).\n"
    for name in (name for name in names if name not in methods):
        is_trainer = name == "MultiHeadTrainer"
        text += "\n" + directive(f"{module}.{name}", *(["members: false"] if is_trainer else []))
        text += trainer_members(f"{module}.{name}") if is_trainer else ""
    return text


def trainer_members(trainer: str) -> str:
    """The members of the trainer, in groups."""
    text = ""
    for group, members in TRAINER.items():
        text += f"\n## {group}\n"
        for member in members.split():
            text += LOADING if member == "load_model" else "\n" + directive(f"{trainer}.{member}", "heading_level: 3")
    return text


def page_of_types() -> str:
    """What the names of types in signatures stand for: the aliases of modules, from their sources."""
    text = "# Types in signatures\n\nShort names for what arguments and results may be. They cannot be imported.\n"
    public = [path for path in (ROOT / "multihead").rglob("*.py") if "/_" not in path.parent.as_posix()]
    used = set(re.findall(r"\w+", " ".join(path.read_text(encoding="utf-8") for path in public)))
    for module in ALIASES:
        body = ast.parse(path_of(f"multihead.{module}").read_text(encoding="utf-8")).body
        for node, following in zip(body, [*body[1:], None]):
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            name = getattr(target, "id", "")
            if name not in used or not re.fullmatch(r"[A-Z]\w*[a-z]\w*", name) or getattr(node, "value", None) is None:
                continue
            is_described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            said = following.value.value if is_described else ""
            value = ast.literal_eval(node.value) if isinstance(node.value, ast.Constant) else ast.unparse(node.value)
            text += f"\n## {name} {{ #multihead.{module}.{name} }}\n" + "".join(
                f"\n{line}\n" for line in ("" if value == "Any" else f"`{value}`", said) if line
            )
    return text


def reference() -> tuple[dict[str, str], list[Any]]:
    """All pages of the reference by their paths, and their navigation."""
    rows, pages = rows_of_methods(), {}
    nav: list[Any] = ["reference/index.md"]
    table = ""
    for module, title in MODULES.items():
        short = module.rpartition(".")[2]
        path = f"reference/{short}.md"
        pages[path] = page_of_module(module, title)
        names = public_names(module)
        methods = [name for name in names if is_method(module, name)]
        for name in methods:
            pages[f"reference/{short}/{name}.md"] = page_of_method(module, name, rows.get(name, {}))
        links = ", ".join(f"[{n}]({short}/{n}.md)" if n in methods else f"[{n}]({short}.md#{module}.{n})" for n in names)
        table += f"| [`{module}`]({short}.md) | {links} |\n"
        inner = [{title: path}, *({name: f"reference/{short}/{name}.md"} for name in methods)]
        nav.append({title: inner} if methods else {title: path})
    pages["reference/types.md"] = page_of_types()
    nav.append({"Types in signatures": "reference/types.md"})
    first = "# Reference\n\nAll public names, and [what the types in signatures mean](types.md).\n"
    pages["reference/index.md"] = f"{first}\n| module | names |\n| --- | --- |\n{table}"
    return pages, nav


# Links that leave the pages


def repository() -> str:
    """The address of the repository: of the workflow that runs, or of the package."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser.get("metadata", "url", fallback="")


def with_links(text: str, source: str, target: str, address: str) -> str:
    """Text whose links to files, and pictures, go to those of the site, or to the repository, or, without one, nowhere.

    Args:
        text: Markdown.
        source: The path from which its links are relative, from the root of the repository.
        target: The page that shows it, from `docs/`.
        address: The repository's address.
    """
    pages = {file: page for page, file in COPIED.items()}

    def replaced(match: re.Match[str]) -> str:
        picture, label, link = match.groups()
        file, mark, anchor = link.partition("#")
        if "://" in link or not file or link.startswith("mailto:"):
            return match.group()
        path = os.path.normpath(os.path.join(os.path.dirname(source), file))
        if path.startswith("docs/") and not path.endswith(".py"):
            page = path.removeprefix("docs/")
        elif path in pages:
            page = pages[path]
        else:
            return f"{picture}[{label}]({address}/blob/main/{path}{mark}{anchor})" if address else label
        return f"{picture}[{label}]({os.path.relpath(page, os.path.dirname(target) or '.')}{mark}{anchor})"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)  # code keeps what looks like links
    linked = [re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", replaced, part) for part in parts[::2]]
    return "".join(a + b for a, b in zip(linked, [*parts[1::2], ""]))


def as_page(notebook: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown: its texts, its code and the stored outputs; and the pictures of these by their paths."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"]).rstrip()
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                path = f"{NOTEBOOK}_{len(pictures) + 1}.png"
                pictures[path] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![What the cell draws]({Path(path).name})")
    return "\n\n".join(parts) + "\n", pictures


def description_of(markdown: str) -> str:
    """The first paragraph of a page, without marks, as far as a search engine shows it."""
    text = re.sub(r"^---.*?^---$|^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    first = next((part for part in parts if re.match(r"[\w`*\[]", part) and not part[0].isdigit()), "")
    first = re.sub(r"[`*]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", first))
    return textwrap.shorten(first, 160, placeholder=" ...")


def with_tabs(text: str) -> str:
    """Text whose pairs of programs, `Before:` and `After:`, are two tabs."""
    pair = r"^Before:\n\n(```python\n.*?^```\n)\nAfter:\n\n(```python\n.*?^```\n)"

    def tabs(match: re.Match[str]) -> str:
        named = zip(("Before", "After"), match.groups())
        return "\n".join(f'=== "{name}"\n\n{textwrap.indent(code, " " * 4)}' for name, code in named)

    return re.sub(pair, tabs, text, flags=re.MULTILINE | re.DOTALL)


# Hooks of MkDocs


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the version, the address and the navigation of the reference."""
    source = (ROOT / "multihead" / "_version.py").read_text(encoding="utf-8")
    config.site_name += " " + re.search(r'__version__ = "(.*)"', source).group(1)
    config.repo_url = repository() or None
    config.repo_name = "multihead"
    if match := re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)", config.repo_url or ""):
        config.site_url = f"https://{match[1].lower()}.github.io/{match[2]}/"
    config.nav = [{"Reference": reference()[1]} if "Reference" in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that have no file in `docs/`."""
    address = config.repo_url or ""
    for page, file in COPIED.items():
        path = ROOT / file
        content = path.read_bytes() if path.suffix == ".png" else with_links(path.read_text("utf-8"), file, page, address)
        files.append(File.generated(config, page, content=content))
    for page, text in reference()[0].items():
        files.append(File.generated(config, page, content=text))
    notebook, pictures = as_page((ROOT / "docs" / f"{NOTEBOOK}.ipynb").read_text(encoding="utf-8"))
    content = with_links(notebook, f"docs/{NOTEBOOK}.ipynb", f"{NOTEBOOK}.md", address)
    for path, written in {f"{NOTEBOOK}.md": content, **pictures}.items():
        files.append(File.generated(config, path, content=written))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of pages in `docs/` to files elsewhere go to the repository; programs before and after are tabs."""
    page.meta.setdefault("description", description_of(markdown) or config.site_description)
    if page.file.generated_by is not None:
        if page.file.src_uri in (*COPIED, f"{NOTEBOOK}.md"):
            SHOWN[page.file.src_uri] = (page.title, page.meta["description"], markdown)
        return markdown
    if page.file.src_uri == "choosing.md":
        for module in METHODS:
            short = module.rpartition(".")[2]
            for name in public_names(module):
                markdown = markdown.replace(f"| `{name}` ", f"| [{name}](reference/{short}/{name}.md) ")
    markdown = markdown.replace(f"{NOTEBOOK}.ipynb", f"{NOTEBOOK}.md")
    linked = with_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri, config.repo_url or "")
    SHOWN[page.file.src_uri] = (page.title, page.meta["description"], linked)
    return with_tabs(linked)


def on_post_build(config: MkDocsConfig) -> None:
    """Writes a copy of each page in Markdown, and `llms.txt`, which lists them."""
    folder = Path(config.site_dir)
    for path, (_, _, markdown) in SHOWN.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(markdown, encoding="utf-8")
    rows = [f"- [{title}]({path}): {description}" for path, (title, description, _) in sorted(SHOWN.items())]
    text = "\n".join([f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", "", *rows, ""])
    (folder / "llms.txt").write_text(text, encoding="utf-8")
