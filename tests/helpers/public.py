"""Everything that is public: functions, classes and the trainer's methods, with their arguments."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import multihead
from multihead import MultiHeadTrainer, models

RESULTS = {
    "comparison.Comparison",
    "comparison.Difference",
    "diagnosis.Diagnosis",
    "losses.ElementLoss",
    "plots.Run",
    "testing.Report",
    "models.Decoded",
}
"""Classes whose instances users get and do not make."""


class Public(NamedTuple):
    """A function, class or method.

    Attributes:
        call: The callable.
        arguments: The annotation of each argument that can be passed by name, and its line of the docstring.
    """

    call: object
    arguments: dict[str, str]


def modules():
    """The public modules."""
    found = [each for name in multihead.__all__ if inspect.ismodule(each := getattr(multihead, name))]
    return [*found, models.search, models.crf]


def callables():
    """All public functions, classes, and methods of the trainer and of some classes, by name."""
    found = {name: getattr(multihead, name) for name in multihead.__all__}
    for module in modules():
        short, top = module.__name__.removeprefix("multihead."), list(map(id, found.values()))
        of_module = {name: getattr(module, name) for name in module.__all__}
        found.update({f"{short}.{name}": each for name, each in of_module.items() if id(each) not in top})
    for owner in (MultiHeadTrainer, multihead.callbacks.HeadEarlyStopping, multihead.accumulation.GradientAccumulator):
        parts = [
            kind
            for kind in owner.__mro__
            if kind is owner or kind.__module__.startswith(("multihead._trainer.", "multihead._formats."))
        ]
        members = [item for kind in parts for item in vars(kind).items()]
        methods = {name: each for name, each in members if inspect.isfunction(each) and not name.startswith("_")}
        found.update({f"{owner.__name__}.{name}": method for name, method in methods.items() if not _is_hook(name)})
    return {
        name: Public(each, _arguments(each))
        for name, each in sorted(found.items())
        if callable(each) and name not in RESULTS and not inspect.ismodule(each)
    }


def _is_hook(name):
    """Whether a method is called by Keras or by the trainer, not by users."""
    return re.fullmatch(r"on_.*|.*_(step|config|function|own_variables|run_state)|check_fit|from_config|begin|write.*", name)


def _arguments(each):
    made = each.__init__ if inspect.isclass(each) else each
    lines = _lines(inspect.getdoc(each) or "")
    parameters = inspect.signature(made).parameters.values()
    return {
        each.name: f"{each.annotation} {lines.get(each.name, '')}"
        for each in parameters
        if each.name != "self" and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }


def _lines(text):
    """The lines of `Args:` in a docstring, by argument."""
    found = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    lines = re.finditer(r"^    \*{0,2}(\w+): (.*\n?(?:^     .*\n?)*)", found.group(1) if found else "", re.MULTILINE)
    return {line.group(1): " ".join(line.group(2).split()) for line in lines}
