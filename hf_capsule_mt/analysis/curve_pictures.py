"""Pictures of the learning curves of one run: the losses in one, BLEU in the other."""

from pathlib import Path
from typing import Any

from hf_capsule_mt.analysis.figures import line_style, new_figure, save_figure
from hf_capsule_mt.analysis.report.learning_curves import training_record

LOSS_CURVE, BLEU_CURVE = "loss_curve.png", "bleu_curve.png"
Points = list[tuple[int, float]]  # (step, value)


def plot_learning_curves(folder: str | Path) -> list[Path]:
    """Draws the curves of the run in `folder` beside its `results.json`, and returns the pictures.

    They are `loss_curve.png`, the loss of training and of validation, and `bleu_curve.png`, the BLEU of validation. A
    picture without a point is not drawn.
    """
    folder = Path(folder)
    record = training_record(folder)
    training = "training, with label smoothing" if record.get("label_smoothing") else "training"
    losses = {training: record["loss"], "validation": _evaluated(record, "eval_loss")}
    bleu = {"validation": _evaluated(record, "eval_bleu")}
    return [
        *_draw(losses, "Loss: lower is better", "translation loss per word, in nats", folder / LOSS_CURVE),
        *_draw(bleu, "BLEU of validation: higher is better", "BLEU", folder / BLEU_CURVE),
    ]


def _evaluated(record: dict[str, Any], name: str) -> Points:
    return [(row["step"], row[name]) for row in record["evaluations"] if name in row]


def _draw(curves: dict[str, Points], title: str, quantity: str, path: Path) -> list[Path]:
    """The picture of the curves that have points. The legend lists the curve with the highest last value first."""
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        return []
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    for index, (name, points) in enumerate(sorted(drawn.items(), key=lambda item: -item[1][-1][1])):
        steps, values = zip(*points, strict=True)
        marker = "o" if len(points) <= 20 else None
        axes.plot(steps, values, label=f"{name}: {values[-1]:.4g} at the end", marker=marker, **line_style(index))
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylabel(quantity)
    points = [point for points in drawn.values() for point in points]
    axes.set_xlim(0, 1.03 * max(step for step, _ in points) or 1)
    axes.set_ylim(0, 1.08 * max(value for _, value in points) or 1)
    axes.grid(color="0.9")
    axes.legend(fontsize=10)
    return [save_figure(figure, path)]
