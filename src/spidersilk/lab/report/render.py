"""The templates of the pages, filled in."""

from __future__ import annotations


def render(name: str, **values: object) -> str:
    import jinja2  # imported here: runs do not need it

    loader = jinja2.PackageLoader("spidersilk.lab.report", "templates")
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": not name.endswith(".html")}
    environment = jinja2.Environment(loader=loader, autoescape=name.endswith(".html"), **options)
    return environment.get_template(name).render(**values)
