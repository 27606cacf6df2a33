import pytest
import torch

from hf_capsule_mt import plot_assignments


def test_writes_a_picture_that_shows_the_assignments(tmp_path):
    from matplotlib import image

    torch.manual_seed(0)
    assignments = torch.rand(3, 4, 6, 16).softmax(-1)
    path = plot_assignments(assignments, tmp_path / "new" / "map.png", tokens=list("abcd"), title="site")
    pixels = image.imread(path)
    assert pixels.shape[0] > 200 and pixels.shape[1] > 600 and pixels.std() > 0.05
    other = plot_assignments(assignments.flip(-2), tmp_path / "other.png", tokens=list("abcd"), title="site")
    assert (image.imread(other).shape != pixels.shape) or (image.imread(other) != pixels).any()


def test_wrong_shapes(tmp_path):
    with pytest.raises(ValueError, match="take one sentence"):
        plot_assignments(torch.rand(3, 2, 4, 6, 16), tmp_path / "map.png")
    with pytest.raises(ValueError, match="2 tokens for 4 positions"):
        plot_assignments(torch.rand(3, 4, 6, 16), tmp_path / "map.png", tokens=["a", "b"])


def test_a_dollar_is_a_character_and_no_formula(tmp_path):
    assignments = torch.rand(2, 2, 3, 4)
    formula = "$\\nosuchcommand$"
    path = plot_assignments(assignments, tmp_path / "map.png", [formula, "b"], title=formula, input_name=formula)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_each_assignment_is_a_field_of_one_colour(tmp_path, monkeypatch):
    """Also where the settings of matplotlib ask for smooth pictures, and where a capsule has few pixels."""
    from matplotlib.axes import Axes

    drawn, real = [], Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda *args, **options: drawn.append(real(*args, **options)) or drawn[-1])
    plot_assignments(torch.rand(2, 3, 4, 8).softmax(-1), tmp_path / "map.png", tokens=list("abc"))
    assert [image.get_interpolation() for image in drawn] == ["nearest"] * 4
