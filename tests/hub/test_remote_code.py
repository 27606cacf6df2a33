"""What a checkpoint's own code is made of, and that it works where this package, and most else, is missing."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from bare_environment import INSTALLED, make_bare_environment, with_requirements
from family_cases import CAPS_NMT, FAMILIES, Case, Family, every_family
from transformers import AutoModelForSeq2SeqLM
from transformers.dynamic_module_utils import get_imports, get_relative_imports

import hf_capsule_mt
from hf_capsule_mt.data import train_tokenizer
from hf_capsule_mt.hub import verify
from hf_capsule_mt.hub.remote_code import flat_files

WORDS = 300


def small(family: Family) -> Any:
    """A model of the family's fullest configuration, for the tokenizer of this file."""
    return Case(family, family.chosen[0]).build(**{**family.shallow, "vocab_size": WORDS, "decoder_vocab_size": WORDS})


def python_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.py")}


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, Path]:
    """A folder of every family, with its code and a tokenizer."""
    tokenizer = train_tokenizer(["The sister wrote a letter.", "Who reads it?"], WORDS)
    folders = {}
    for family in FAMILIES:
        folders[family.name] = folder = tmp_path_factory.mktemp("exported") / family.name
        small(family).save_pretrained(folder, export_code=True)
        tokenizer.save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory) -> str:
    return str(make_bare_environment(tmp_path_factory.mktemp("bare")))


@pytest.fixture
def copy_of(exported, tmp_path):
    return lambda name: Path(shutil.copytree(exported[name], tmp_path / name))


@every_family
def test_the_auto_map_names_the_classes_of_the_family(family: Family):
    config = family.config()
    config.carry_code()
    found = {
        auto: getattr(import_module(f"hf_capsule_mt.{entry.split('_')[0]}.{entry.split('.')[0]}"), entry.split(".")[1])
        for auto, entry in config.auto_map.items()
    }
    expected = {"AutoConfig": family.config, "AutoModel": family.model, "AutoModelForSeq2SeqLM": family.translation}
    assert found == expected


@every_family
def test_every_file_loads_with_its_siblings_torch_and_transformers_alone(family: Family, exported):
    folder = exported[family.name]
    config = family.config()
    config.carry_code()
    assert python_files(folder) == flat_files(config).keys() and "pipelines.py" in python_files(folder)
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# Copied from hf_capsule_mt {hf_capsule_mt.__version__} (")
        assert set(get_imports(path)) <= {"torch", "transformers"} | sys.stdlib_module_names, path
        for name in get_relative_imports(path):
            assert (folder / f"{name}.py").is_file(), f"{path.name} imports {name}"


def test_families_get_their_own_files_only(exported):
    modeling = {name for name in python_files(exported["gdr_marian"]) if name.startswith("modeling_")}
    assert modeling == {"modeling_gdr_marian.py", "modeling_capsule_aggregated_marian.py"}


def test_without_asking_no_code_is_saved(tmp_path):
    small(CAPS_NMT).save_pretrained(tmp_path)
    assert python_files(tmp_path) == set()
    assert not {"auto_map", "custom_pipelines"} & config_of(tmp_path).keys()


def test_a_checkpoint_keeps_its_code_until_told_otherwise(exported, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(exported["caps_nmt"])
    assert type(model) is CAPS_NMT.translation, "the package's own class, without asking for trust"
    model.save_pretrained(tmp_path / "kept")
    assert python_files(tmp_path / "kept") == python_files(exported["caps_nmt"])
    assert config_of(tmp_path / "kept") == config_of(exported["caps_nmt"])
    model.save_pretrained(tmp_path / "plain", export_code=False)
    assert python_files(tmp_path / "plain") == set() and "auto_map" not in config_of(tmp_path / "plain")


def test_a_warm_start_does_not_carry_the_code_of_the_other_family(exported, tmp_path):
    model = hf_capsule_mt.GDRMarianForConditionalGeneration.from_pretrained(exported["capsule_aggregated_marian"])
    model.save_pretrained(tmp_path)
    assert python_files(tmp_path) == set() and "auto_map" not in config_of(tmp_path)
    model.save_pretrained(tmp_path, export_code=True)
    assert config_of(tmp_path)["auto_map"]["AutoModel"] == "modeling_gdr_marian.GDRMarianModel"
    assert "modeling_gdr_marian.py" in python_files(tmp_path)


class Mine(CAPS_NMT.translation):
    """A user's own model."""


def test_classes_of_a_user_are_refused(tmp_path):
    model = Mine(Case(CAPS_NMT, CAPS_NMT.chosen[0]).config())
    with pytest.raises(ValueError, match="Mine is none of the classes .* register_for_auto_class"):
        model.save_pretrained(tmp_path, export_code=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="CapsNMTEncoder"):
        model.get_encoder().save_pretrained(tmp_path, export_code=True)
    model.save_pretrained(tmp_path)
    assert python_files(tmp_path) == set()


def test_what_a_user_registers_is_left_to_transformers(tmp_path, monkeypatch):
    monkeypatch.setattr(Mine, "_auto_class", "AutoModelForSeq2SeqLM")
    model = Mine(Case(CAPS_NMT, CAPS_NMT.chosen[0]).config())
    model.save_pretrained(tmp_path)
    assert config_of(tmp_path)["auto_map"] == {"AutoModelForSeq2SeqLM": f"{Path(__file__).stem}.Mine"}
    assert "modeling_caps_nmt.py" not in python_files(tmp_path)


def test_all_families_work_alone(exported, bare_python, monkeypatch):
    """With torch, transformers and tokenizers only: by model class and by pipeline, and saved again."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    hidden = ["hf_capsule_mt", "datasets", "evaluate", "accelerate", "sacrebleu", "pandas", "matplotlib", "peft"]
    hidden += [] if "triton" in with_requirements(INSTALLED) else ["triton"]  # PyTorch for CUDA requires it
    there = ["torch", "transformers", "tokenizers", "safetensors"]
    ask = f"from importlib.util import find_spec\nprint([name for name in {hidden + there} if find_spec(name)])"
    found = subprocess.run([bare_python, "-P", "-c", ask], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(there)
    verify(*exported.values(), python=bare_python)


def test_what_was_tampered_with_is_noticed(copy_of, bare_python):
    folder = copy_of("caps_nmt")
    path = folder / "modeling_caps_nmt.py"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("self.norm(states + ", "self.norm(states - ")
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    with pytest.raises(ValueError, match="caps_nmt: logits differ without this package"):
        verify(folder, python=bare_python)


def test_a_folder_without_code_is_refused(tmp_path):
    small(CAPS_NMT).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="does not hold its code; save the model with .*export_code=True"):
        verify(tmp_path)
    with pytest.raises(ValueError, match="is no checkpoint"):
        verify(tmp_path / "nowhere")


def test_pickled_files_and_other_libraries_are_refused(copy_of):
    folder = copy_of("caps_nmt")
    (folder / "training_args.bin").touch()
    with pytest.raises(ValueError, match="training_args.bin; reading a pickled file can run any code"):
        verify(folder)
    (folder / "training_args.bin").unlink()
    path = folder / "lstm_decoder.py"
    path.write_text("import datasets\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ValueError, match="lstm_decoder.py needs datasets; .* torch and transformers only"):
        verify(folder)
