"""The templates of the pages, filled in."""

from __future__ import annotations


def render(name: str, **values: object) -> str:
    import jinja2  # imported here: runs do not need it

    loader, is_html = jinja2.PackageLoader("spidersilk.lab.report", "templates"), name.endswith(".html")
    environment = jinja2.Environment(
        loader=loader, autoescape=is_html, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=not is_html
    )
    return environment.get_template(name).render(**values)
