"""`routings` of a model's output: a dictionary that a notebook shows as maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils import _pytree


class Routings(dict[str, Tensor]):
    """The assignment probabilities of each routing site, `[iterations, batch, positions, inputs, capsules]`.

    It is a dictionary. In a notebook it shows the first sentence of the batch as interactive maps.

    Example:

    ```python
    outputs = model(**inputs, decoder_input_ids=tokens, output_routings=True)
    outputs.routings.save_html("routings.html", source=tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]))
    ```
    """

    def to_html(
        self, sentence: int = 0, source: Sequence[str] | None = None, target: Sequence[str] | None = None
    ) -> str:
        """One HTML page without other files, with a map of each site.

        Args:
            sentence: which sentence of the batch.
            source, target: names of its source and target tokens, without padding; None numbers the positions.
        """
        from hf_capsule_mt.analysis.maps import map_page, site_maps

        return map_page(self._title(sentence), site_maps(self, sentence, source, target))

    def save_html(self, path: str | Path, **options: Any) -> Path:
        """Writes `to_html(**options)` to a file. Missing folders are created."""
        path = Path(path)
        page = self.to_html(**options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
        return path

    def _title(self, sentence: int) -> str:
        return f"Routings of sentence {sentence}"

    def _repr_html_(self) -> str | None:
        """What a notebook shows; with None it prints the dictionary."""
        from hf_capsule_mt.analysis.maps import notebook_frame

        return notebook_frame(self.to_html(), self._title(0)) if self else None


# Without this, PyTorch would see one leaf instead of tensors, for example in FSDP.
_pytree.register_pytree_node(
    Routings,
    lambda routings: (list(routings.values()), list(routings)),
    lambda tensors, sites: Routings(zip(sites, tensors, strict=True)),
    serialized_type_name="hf_capsule_mt.routings.Routings",
)
