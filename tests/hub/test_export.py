"""From a folder that training left to one that is given away; nothing is pushed that was not verified."""

import runpy
import sys
from pathlib import Path

import pytest
from family_cases import CAPS_NMT, Case
from transformers import MarianConfig, MarianMTModel

import hf_capsule_mt.hub.export as export
from hf_capsule_mt.data import train_tokenizer

SCRIPT = Path(__file__).parents[2] / "scripts" / "export_to_hub.py"


@pytest.fixture
def trained(tmp_path) -> Path:
    """What the Trainer leaves: among other things a pickled file."""
    folder = tmp_path / "trained"
    Case(CAPS_NMT, "pooling").build(vocab_size=300).save_pretrained(folder)
    train_tokenizer(["The sister wrote a letter."], 300).save_pretrained(folder)
    (folder / "README.md").write_text("A card.")
    (folder / "training_args.bin").touch()
    return folder


@pytest.fixture
def verified(monkeypatch) -> list[Path]:
    """The folders that are verified, without the process that it takes."""
    folders: list[Path] = []
    monkeypatch.setattr(export, "verify", folders.append)
    return folders


def run_script(monkeypatch, *options: object) -> object:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, options)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return ended.value.code


def test_what_belongs_to_the_model_goes_along_and_nothing_else(trained, verified, tmp_path):
    names = {path.name for path in export.export_checkpoint(trained, tmp_path / "new")}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "README.md", "modeling_caps_nmt.py"}
    assert "training_args.bin" not in names
    assert verified == [tmp_path / "new"]
    with pytest.raises(ValueError, match="new is not empty"):
        export.export_checkpoint(trained, tmp_path / "new")


def test_other_models_are_refused(verified, tmp_path):
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    MarianMTModel(MarianConfig(vocab_size=20, pad_token_id=1, **sizes, **heads)).save_pretrained(tmp_path / "marian")
    with pytest.raises(ValueError, match="MarianMTModel, which is no model of hf_capsule_mt"):
        export.export_checkpoint(tmp_path / "marian", tmp_path / "new")
    assert not verified and not (tmp_path / "new").exists()


def test_a_dry_run_pushes_nothing(trained, verified, monkeypatch, capsys):
    assert run_script(monkeypatch, trained, "--push", "me/model", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "model.safetensors\n" in printed and printed.endswith("nothing was pushed\n")
    assert len(verified) == 1


def test_what_is_not_verified_is_not_pushed(trained, monkeypatch, capsys):
    def fails(folder: Path) -> None:
        raise ValueError("logits differ")

    monkeypatch.setattr(export, "verify", fails)
    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", lambda *args, **kwargs: pytest.fail("asked the Hub"))
    assert run_script(monkeypatch, trained, "--push", "me/model") == 1
    assert "error: logits differ\nnothing was pushed" in capsys.readouterr().err
