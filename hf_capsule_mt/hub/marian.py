"""Warm start: a Marian checkpoint as one of our Marian families, whose outputs are still those of the checkpoint."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import MarianMTModel

from hf_capsule_mt.hub.export import TOKENIZER_FILES, copy_files
from hf_capsule_mt.hub.load_alone import outputs_of
from hf_capsule_mt.hub.verification import compare
from hf_capsule_mt.modeling.modeling_capsule_aggregated_marian import CapsuleAggregatedMarianForConditionalGeneration
from hf_capsule_mt.modeling.modeling_gdr_marian import GDRMarianForConditionalGeneration

# The classes, and the settings with which they start where the checkpoint is.
MARIAN_FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "capsule_aggregated_marian": (CapsuleAggregatedMarianForConditionalGeneration, {"aggregation_output": "gated"}),
    "gdr_marian": (GDRMarianForConditionalGeneration, {"aggregation_output": "gated"}),
}


def convert_marian(
    source: str | PathLike[str],
    output: str | PathLike[str],
    family: str,
    *,
    same_outputs: bool = True,
    export_code: bool = False,
    **settings: Any,
) -> None:
    """Write the Marian checkpoint `source`, a folder or Hub id, as a model of `family` to the folder `output`.

    `settings` are fields of the family's configuration. Logits and beams must be those of the checkpoint unless
    `same_outputs=False`, which is for settings that change them, such as `aggregation_output="replace"`.
    """
    if family not in MARIAN_FAMILIES:
        raise ValueError(f"family={family!r}: must be one of {', '.join(MARIAN_FAMILIES)}")
    folder, output = Path(source), Path(output)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(source), allow_patterns=[*TOKENIZER_FILES, "*.json", "*.safetensors"]))
    found, unchanged = MARIAN_FAMILIES[family]
    model = found.from_pretrained(folder, **{**unchanged, **settings})
    if same_outputs:
        # Safetensors only, as for the model itself.
        marian = MarianMTModel.from_pretrained(folder, use_safetensors=True)
        compare(f"{family} from {source}", "changed at the start", outputs_of(model), outputs_of(marian))
    model.save_pretrained(output, export_code=export_code)
    copy_files(folder, output, TOKENIZER_FILES)
    _name_tokenizer(output)


def _name_tokenizer(folder: Path) -> None:
    """Older checkpoints leave it to the model type that they have Marian's tokenizer, and ours has another."""
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if (folder / "source.spm").is_file() and "tokenizer_class" not in values:
        path.write_text(json.dumps({**values, "tokenizer_class": "MarianTokenizer"}, indent=2), encoding="utf-8")
