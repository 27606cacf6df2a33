"""A Marian checkpoint becomes one of our families and still says what it said."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel

from hf_capsule_mt.configuration import GDRMarianConfig
from hf_capsule_mt.hub import MARIAN_FAMILIES, convert_marian

SCRIPT = Path(__file__).parents[2] / "scripts" / "convert_marian.py"
# What an opus-mt checkpoint had in its config.json before generation had a file of its own.
OLD_GENERATION = {"num_beams": 3, "bad_words_ids": [[46]], "max_length": 9}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A small Marian that says different things, in the form of the older published ones."""
    torch.manual_seed(3)
    config = MarianConfig(
        vocab_size=47,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=20,
        decoder_ffn_dim=28,
        max_position_embeddings=24,
        pad_token_id=46,
        eos_token_id=0,
        decoder_start_token_id=46,
        forced_eos_token_id=0,
        init_std=0.5,
    )
    folder = tmp_path_factory.mktemp("marian")
    MarianMTModel(config).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **OLD_GENERATION}))
    for name in ("source.spm", "target.spm", "vocab.json"):
        (folder / name).write_text(name)
    (folder / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    return folder


@pytest.mark.parametrize("family", sorted(MARIAN_FAMILIES))
def test_the_outputs_are_those_of_the_checkpoint(family: str, checkpoint, tmp_path):
    convert_marian(checkpoint, tmp_path, family)
    model, marian = (AutoModelForSeq2SeqLM.from_pretrained(folder).eval() for folder in (tmp_path, checkpoint))
    assert type(model) is MARIAN_FAMILIES[family][0]
    source = torch.randint(1, 46, (3, 6))
    with torch.no_grad():
        torch.testing.assert_close(
            model(source, decoder_input_ids=source).logits, marian(source, decoder_input_ids=source).logits
        )
    # By the generation settings of the old configuration, too.
    assert model.generation_config.num_beams == 3 and model.generation_config.bad_words_ids == [[46]]
    assert torch.equal(model.generate(source), marian.generate(source))
    assert {"source.spm", "target.spm", "vocab.json"} <= {path.name for path in tmp_path.iterdir()}
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert tokenizer == {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}


@pytest.mark.parametrize("kind", ["guided_routing", "classifier", "attention", "none"])
def test_every_kind_of_past_and_future_starts_there(kind: str, checkpoint, tmp_path):
    convert_marian(checkpoint, tmp_path, "gdr_marian", past_future=kind, export_code=True)
    assert GDRMarianConfig.from_pretrained(tmp_path).past_future == kind
    assert (tmp_path / "modeling_gdr_marian.py").is_file()


def test_settings_that_start_elsewhere_are_said_to(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="capsule_aggregated_marian from .*: logits changed at the start"):
        convert_marian(checkpoint, tmp_path, "capsule_aggregated_marian", aggregation_output="replace")
    assert not list(tmp_path.iterdir())
    settings = {"aggregation_output": "replace", "same_outputs": False}
    convert_marian(checkpoint, tmp_path, "capsule_aggregated_marian", **settings)
    assert (tmp_path / "model.safetensors").is_file()


def test_a_pickled_checkpoint_is_refused(checkpoint, tmp_path):
    model = MarianMTModel.from_pretrained(checkpoint)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="convert it once, where you trust it"):
        convert_marian(tmp_path, tmp_path / "new", "gdr_marian")


def test_an_unknown_family_is_refused(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="family='caps_nmt': must be one of capsule_aggregated_marian, gdr_marian"):
        convert_marian(checkpoint, tmp_path, "caps_nmt")


def test_the_script(checkpoint, tmp_path, monkeypatch, capsys):
    options = [
        "--family",
        "gdr_marian",
        "--output",
        str(tmp_path / "new"),
        "--set",
        "capsule_dim=6",
        "past_future=classifier",
    ]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(checkpoint), *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    assert printed.out.endswith("new: gdr_marian, with the outputs of the checkpoint\n")
    config = GDRMarianConfig.from_pretrained(tmp_path / "new")
    assert (config.capsule_dim, config.past_future) == (6, "classifier")
