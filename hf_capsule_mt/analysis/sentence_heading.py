"""The heading of a page with all routing of one sentence, as HTML with all text escaped."""

from collections.abc import Sequence
from html import escape

HEADING = """<header class="page-heading">
<h1>Routing of one sentence</h1>
<dl>
{rows}
</dl>
<p>{shows}</p>
</header>
"""
NO_WARNINGS = "none are possible, because this model has no past and future"


def sentence_heading(
    source: str, translation: str, is_given: bool, model_name: str, warnings: Sequence[str], shown: Sequence[str]
) -> str:
    """Source, translation, model and warnings, and one sentence about what the page shows.

    Args:
        is_given: whether the translation was given; otherwise it is the model's own.
        model_name: empty for a model without a name. shown: the names of what the maps show.
    """
    by = "given" if is_given else "the model’s own"
    rows = [("Source", [source]), (f"Translation ({by})", [translation])]
    rows += [("Model", [model_name])] if model_name else []
    rows.append(("Warnings", list(warnings) or [NO_WARNINGS]))
    listed = "\n".join(
        f"<dt>{escape(name)}</dt>" + "".join(f'<dd dir="auto">{escape(line)}</dd>' for line in lines)
        for name, lines in rows
    )
    shows = f"This page shows {', '.join(shown)}. Choose a word, and step through the iterations of routing."
    return HEADING.format(rows=listed, shows=escape(shows))
