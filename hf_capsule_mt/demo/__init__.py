"""`capsule-mt demo`: a web page where people type a sentence and see routing. The extra `demo` installs Gradio."""

from hf_capsule_mt.demo.models import DemoModel, load_models
from hf_capsule_mt.demo.space import write_space

__all__ = ["DemoModel", "load_models", "write_space"]
