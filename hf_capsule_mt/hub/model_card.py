"""The model card of a training run, from the `results.json` that the run wrote."""

import json
import re
from os import PathLike
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

TEMPLATE = Path(__file__).with_name("model_card_template.md")
CURVE_ROWS = 12
# Settings that say where and how the program ran, not what it learned.
PLACES = ("output_dir", "cache_dir", "resume_from_checkpoint", "hub_token", "num_proc", "report_to", "disable_tqdm")
# Settings whose value may be a place.
CORPORA = ("train", "validation", "test", "tokenizer", "init_from")
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")

PAPERS = {
    "capsule_aggregated_marian": (
        "Dou et al. 2019, *Dynamic Layer Aggregation for Neural Machine Translation with Routing-by-Agreement*",
        "Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*",
    ),
    "gdr_marian": ("Zheng et al. 2019, *Dynamic Past and Future for Neural Machine Translation*",),
    "gdr_rnmt": ("Zheng et al. 2019, *Dynamic Past and Future for Neural Machine Translation*",),
    "marian": (),  # the baseline, Transformers' own
    "caps_nmt": ("Wang et al. 2019, *Towards Linear Time Neural Machine Translation with Capsule Networks*",),
}


def model_card(
    results: dict[str, Any],
    name: str,
    *,
    license: str,
    datasets: list[str] | None = None,
    base_model: str | None = None,
    limits: str | None = None,
) -> ModelCard:
    """The card of the model `name`, as its users are to call it (`me/model`).

    `datasets` and `base_model` are ids on the Hub, `limits` what the model should not be used for. What a run
    measured is told as it stands in `results`; what it did not measure is left out.
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
        family=family,
        languages=languages,
        results=results,
        splits=splits,
        settings=_settings(results["recipe"]),
        curve=_thinned(results.get("loss_curve") or []),
        papers=PAPERS[family],
        limits=limits,
    )


def write_model_card(folder: str | PathLike[str], name: str | None = None, **about: Any) -> Path:
    """Write README.md beside the results.json of a run; see `model_card` for `about`."""
    folder = Path(folder)
    try:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no results of a run: results.json cannot be read ({error})") from error
    path = folder / "README.md"
    model_card(results, name or folder.resolve().name, **about).save(path)
    return path


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
