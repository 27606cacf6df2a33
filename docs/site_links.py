"""A hook of MkDocs: links from a page to files of the repository outside of docs/.

In the repository they work as they are. On the site a picture is copied, and another file is named without a link. A
file that does not exist ends the build.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

LINK = re.compile(r"(!?)\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    pages = Path(config["docs_dir"])

    def replaced(match: re.Match[str]) -> str:
        picture, text, link = match.groups()
        target = (pages / page.file.src_path).parent.joinpath(link).resolve()
        if target.is_relative_to(pages):
            return match[0]
        name = target.relative_to(pages.parent)
        if not target.exists():
            raise PluginError(f"{page.file.src_path} links to {name}, which does not exist")
        if not picture:
            return f"{text} (`{name}` of the repository)"
        copied = f"pictures/{target.name}"
        if files.get_file_from_path(copied) is None:
            files.append(File.generated(config, copied, abs_src_path=str(target)))
        return f"![{text}]({copied})"

    return LINK.sub(replaced, markdown)
