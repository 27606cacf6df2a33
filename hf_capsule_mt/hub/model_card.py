"""The model card of a training run, from the `results.json` that the run wrote."""

import json
import re
from os import PathLike
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_capsule_mt.families import FAMILIES, MARIAN
from hf_capsule_mt.hub.markdown_text import code_span, escaped

TEMPLATE = Path(__file__).with_name("model_card_template.md")
CURVE_ROWS = 12
# Settings that say where and how the program ran, not what it learned.
PLACES = ("output_dir", "cache_dir", "resume_from_checkpoint", "hub_token", "num_proc", "report_to", "disable_tqdm")
# Settings whose value may be a place.
CORPORA = ("train", "validation", "test", "tokenizer", "init_from")
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")

# What the snippets of a card load.
LOADED = re.compile(r"""(pipeline\("translation", model=)"(?:[^"\\\n]|\\.)*\"""")


def model_card(
    results: dict[str, Any],
    name: str,
    *,
    license: str,
    place: str | None = None,
    datasets: list[str] | None = None,
    base_model: str | None = None,
    limits: str | None = None,
) -> ModelCard:
    """The card of the model `name`; a name on the Hub (`me/model`) is what its users load.

    `place` is what they load otherwise, the folder of the model. `datasets` and `base_model` are ids on the Hub,
    `limits` what the model should not be used for. What a run measured is told as it stands in `results`; what it
    did not measure is left out.
    """
    family, languages = results["model"]["family"], [results["data"][side] for side in ("source", "target")]
    splits = [split for split in ("test", "validation") if split in results]
    data = ModelCardData(
        language=languages,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["capsule-networks", "hf_capsule_mt", family],
        datasets=datasets,
        base_model=base_model,
        metrics=["bleu", "chrf"] if splits else None,
        model_name=name,
        eval_results=[result for split in splits for result in _eval_results(results, split)] or None,
    )
    return ModelCard.from_template(
        data,
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        name=name,
        place=json.dumps(place or (name if HUB_NAME.fullmatch(name) else f"path/to/{name}"), ensure_ascii=False),
        text=escaped,
        code=code_span,
        family=family,
        languages=languages,
        results=results,
        splits=splits,
        settings=_settings(results["recipe"]),
        segments=_segments(results.get("segments") or []),
        curve=_thinned(results.get("loss_curve") or []),
        papers={**FAMILIES, MARIAN.name: MARIAN}[family].papers,
        limits=limits,
    )


def write_model_card(folder: str | PathLike[str], name: str | None = None, **about: Any) -> Path:
    """Write README.md beside the results.json of a run; see `model_card` for `about`.

    Without a `name`, the card tells users to load what the run has pushed to, or else the folder.
    """
    folder = Path(folder)
    try:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no results of a run: results.json cannot be read ({error})") from error
    path = folder / "README.md"
    pushed = _name_of_push(results)
    place = name or pushed or loadable_path(folder)
    model_card(results, name or pushed or folder.resolve().name, **{"place": place, **about}).save(path)
    return path


def loadable_path(folder: Path) -> str:
    """The folder as it can be loaded: from the current folder, where it is inside of it, or from anywhere."""
    folder, here = folder.resolve(), Path.cwd()
    return str(folder.relative_to(here) if here in folder.parents else folder)


def with_place(card: str, place: str) -> str:
    """The text of a card whose readers are told to load `place`."""
    quoted = json.dumps(place, ensure_ascii=False)
    return LOADED.sub(lambda found: f"{found[1]}{quoted}", card)


def _name_of_push(results: dict[str, Any]) -> str | None:
    """Where on the Hub a run has pushed its model, as far as it was said."""
    arguments = results.get("training") or {}
    name = arguments.get("hub_model_id")
    return name if arguments.get("push_to_hub") and name and "/" in name else None


def names_on_hub(*names: str | None) -> list[str]:
    """Of the checkpoints and corpora that a run has read, those that have a name on the Hub and are not here."""
    found = [
        name.partition(":")[0]
        for name in names
        if name and HUB_NAME.fullmatch(name) and not any(Path(name).parent.glob(f"{Path(name).name}*"))
    ]
    return list(dict.fromkeys(found))


def place_name(value: Any) -> Any:
    """A corpus or checkpoint without the folders that it lies in; those of a Hub id and of a URL are its name."""
    is_place = isinstance(value, str) and (value.startswith(("/", "~", ".")) or value.count("/") > 1)
    return Path(value).name if is_place and "://" not in value else value


def _settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """What the recipe sets, `config.d_model` and the like on lines of their own."""
    found = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            found.update({f"{key}.{name}": inner for name, inner in value.items()})
        elif key not in PLACES:
            found[key] = place_name(value) if key in CORPORA else value
    return dict(sorted(found.items()))


def _segments(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of a run that was taken up again, corpora without their folders; none of one that was not."""
    if len(segments) < 2:
        return []
    return [
        part | {"changed": {key: list(map(place_name, values)) for key, values in part["changed"].items()}}
        for part in segments
    ]


def _eval_results(results: dict[str, Any], split: str) -> list[EvalResult]:
    corpus = str(place_name(results["data"][split]))
    scores, pair = results[split], "{source}-{target}".format(**results["data"])
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {pair}",
            dataset_type=corpus,
            dataset_name=corpus,
            dataset_split=split,
            metric_type=metric,
            metric_name=title,
            metric_value=round(scores[metric], 2),
            metric_args={"signature": scores[f"{metric}_signature"]},
        )
        for metric, title in (("bleu", "BLEU"), ("chrf", "chrF"))
    ]


def _thinned(curve: list[list[float]]) -> list[list[float]]:
    """At most `CURVE_ROWS` points, the first and the last among them."""
    if len(curve) <= CURVE_ROWS:
        return curve
    step = (len(curve) - 1) / (CURVE_ROWS - 1)
    return [curve[round(step * index)] for index in range(CURVE_ROWS)]
