"""Pages from templates: texts are escaped, an unknown name is an error, and colours are those of the charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from dqnfed_flwr.report.drawing import THEME

SHARED = "dqnfed_flwr.report"
"""The package whose templates any page may include."""


def render_page(template: str, names: Mapping[str, Any], *, package: str = SHARED) -> str:
    """The HTML of a page.

    Parameters
    ----------
    template : str
        A file in the folder `templates` of `package`, or of `SHARED`.
    names : Mapping[str, Any]
        What the template, and those that it includes, may use, besides `theme`.
    package : str
        Looked in first.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, SHARED))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"theme": THEME, **names}
    return environment.get_template(template).render().lstrip()
