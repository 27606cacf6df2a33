"""Which source words each capsule listens to: Table 4, CapsNMT.

Legend: `N` iterations of routing, `S` source words, `M` capsules.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hf_capsule_mt.analysis.sentence_words import encode_words, long_frame, text_table
from hf_capsule_mt.modeling.translation_loop import evaluation_mode

SITE = "encoder.capsules"
COLOR = (255, 152, 56)  # of a word that is a capsule's alone; black letters are readable on all shades of it
FONT, MARGIN, LINE, WIDTH = 11, 0.95, 0.32, 9.0  # points; inches left of the words, between lines, and for the words

PAGE = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; color: #000; background: #fff; }}
th {{ text-align: right; font-weight: normal; padding-right: 1em; white-space: nowrap; vertical-align: top; }}
td {{ line-height: 1.8; }}
span {{ padding: 0.15em 0.3em; }}
</style>
</head>
<body>
<p>Colour: the share of each word that goes to the capsule, from none (white) to all.</p>
{iterations}
</body>
</html>
"""


@dataclass(frozen=True, eq=False)
class CapsuleAttention:
    """The routing coefficients alpha of Eq. (11), CapsNMT: how much of each source word goes to each capsule.

    `coefficients` is `[N, S, M]`: every iteration, first to last. The shares of a word add up to 1 over the capsules;
    those of the first iteration are all the same.
    """

    words: tuple[str, ...]
    coefficients: NDArray[np.float32]

    def __str__(self) -> str:
        """A table with a row a word: its shares of the last iteration in per cent."""
        count = self.coefficients.shape[-1]
        rows = [["%", *(f"capsule {capsule + 1}" for capsule in range(count))]]
        for word, shares in zip(self.words, self.coefficients[-1], strict=True):
            rows.append([word, *(f"{100 * share:.0f}" for share in shares)])
        return text_table(rows)

    def to_pandas(self) -> Any:
        """A long frame with one row for each iteration, source word and capsule, all three counted from 1."""
        return long_frame(
            [
                {
                    "iteration": iteration + 1,
                    "position": position + 1,
                    "word": self.words[position],
                    "capsule": capsule + 1,
                    "coefficient": float(coefficient),
                }
                for (iteration, position, capsule), coefficient in np.ndenumerate(self.coefficients)
            ]
        )

    def plot(self, path: str | Path, iteration: int = -1) -> Path:
        """Write Table 4, CapsNMT as a PNG: the sentence once a capsule, the colour of a word is its coefficient.

        `iteration` counts as a Python index does: 0 is the first, -1 the last.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plots need matplotlib: pip install 'hf_capsule_mt[plot]'") from error
        shares = self.coefficients[iteration]
        figure = Figure(dpi=110)
        canvas: Any = FigureCanvasAgg(figure)
        # `$` in a word is a character, no formula.
        written = [figure.text(0, 0, word, fontsize=FONT, parse_math=False) for word in self.words]
        widths = [text.get_window_extent(canvas.get_renderer()).width / figure.dpi for text in written]
        figure.clear()
        places = list(_places(widths))
        lines = places[-1][0] + 1
        width, height = MARGIN + WIDTH, LINE * (1 + (lines + 0.5) * shares.shape[1])
        figure.set_size_inches(width, height)

        def write(x: float, line: float, text: str, **options: Any) -> None:
            options = {"fontsize": FONT, "parse_math": False, "va": "center", **options}
            figure.text(x / width, 1 - LINE * (line + 0.5) / height, text, **options)

        write(0.0, 0.0, self._heading(iteration), fontsize=FONT - 2)
        color = tuple(part / 255 for part in COLOR)
        for capsule, column in enumerate(shares.T):
            top = 1 + (lines + 0.5) * capsule
            write(0.0, top, f"capsule {capsule + 1}", color="0.4", fontsize=FONT - 2)
            for word, (line, x), share in zip(self.words, places, column, strict=True):
                box = {"facecolor": (*color, float(share)), "edgecolor": "none", "boxstyle": "square,pad=0.25"}
                write(MARGIN + x, top + line, word, bbox=box)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, bbox_inches="tight")
        return path

    def to_html(self) -> str:
        """Table 4, CapsNMT as a page that needs nothing but itself: the last iteration, and the others to unfold."""
        count = len(self.coefficients)
        last = f"<p>{self._heading(-1)}</p>\n{self._html_table(count - 1)}"
        others = [
            f"<details><summary>{self._heading(index)}</summary>\n{self._html_table(index)}\n</details>"
            for index in reversed(range(count - 1))
        ]
        return PAGE.format(title=escape(" ".join(self.words)), iterations="\n".join([last, *others]))

    def save_html(self, path: str | Path) -> Path:
        """Write `to_html()` to a file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_html(), encoding="utf-8")
        return path

    def _heading(self, iteration: int) -> str:
        count = len(self.coefficients)
        return f"iteration {iteration % count + 1} of {count}"

    def _html_table(self, iteration: int) -> str:
        rows = []
        for capsule, shares in enumerate(self.coefficients[iteration].T):
            spans = [
                f'<span style="background: rgba({", ".join(map(str, COLOR))}, {share:.3f})" title="{share:.3f}">'
                f"{escape(word)}</span>"
                for word, share in zip(self.words, shares, strict=True)
            ]
            rows.append(f'<tr><th>capsule {capsule + 1}</th><td dir="auto">{" ".join(spans)}</td></tr>')
        return "<table>\n" + "\n".join(rows) + "\n</table>"


def _places(widths: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Line and x, in inches, of words of these widths written one after the other."""
    line, x = 0, 0.0
    for width in widths:
        if x > 0 and x + width > WIDTH:
            line, x = line + 1, 0.0
        yield line, x
        x += width + 0.16


def capsule_attention(model: Any, tokenizer: PreTrainedTokenizerBase, source: str) -> CapsuleAttention:
    """How much of each word of a sentence goes to each capsule, in every iteration of routing.

    Args:
        model: CapsNMT with `source_aggregation="capsules"`. tokenizer: its tokenizer. source: the sentence.

    A word of several tokens has their mean. The end token is routed too, and not shown.
    """
    kind = getattr(model.config, "source_aggregation", None)
    if kind != "capsules":
        raise ValueError(
            f"source_aggregation={kind!r} in the configuration of this {model.config.model_type} model: there are no "
            "capsules over the source; use a CapsNMT model with 'capsules'"
        )
    if not source.strip():
        raise ValueError("the source is empty: there is nothing to listen to")
    ids, words, rows = encode_words(tokenizer, text=source)
    encoded = torch.tensor([ids], device=model.device)
    with evaluation_mode(model), torch.no_grad():
        outputs = model.get_encoder()(
            encoded, attention_mask=torch.ones_like(encoded), output_routings=True, return_dict=True
        )
    tokens = outputs.routings[SITE][:, 0, 0].float().cpu().numpy()  # [N, source tokens, M]
    return CapsuleAttention(tuple(words), np.stack([tokens[:, places].mean(axis=1) for places in rows], axis=1))
