"""Files outside docs/ that pages link to (README, results, examples) become files of the site, at their own place.

On a code host `../results/x.json` is right as it stands. In the site docs/ is the root, so the link becomes
`results/x.json`, and the file is copied there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<!`)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def site_path(path: Path) -> str:
    """Where a file of the repository is in the site."""
    inside = path.relative_to(ROOT).as_posix()
    return inside.removeprefix("docs/")


def target_of(page: Path, target: str) -> Path:
    """The file that a link of a page means; a folder's is its README."""
    path = (page.parent / target).resolve()
    return path / "README.md" if path.is_dir() else path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to from a page, and from the pages added."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    while waiting:
        page = waiting.pop()
        for target, _ in LINK.findall(page.read_text()):
            path = target_of(page, target)
            if path.is_file() and not files.get_file_from_path(site_path(path)):
                files.append(File.generated(config, site_path(path), abs_src_path=str(path)))
                if path.suffix == ".md":
                    waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    held = Path(str(page.file.abs_src_path)).resolve()
    here = os.path.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target, anchor = match.groups()
        path = target_of(held, target)
        if not path.is_file():
            return match.group()  # mkdocs warns, which ends a strict build
        return f"]({os.path.relpath(site_path(path), here or '.')}{anchor or ''})"

    return LINK.sub(moved, markdown)
