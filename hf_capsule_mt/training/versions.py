"""The versions of the libraries that a result depends on."""

import platform


def versions() -> dict[str, str]:
    """Python, the libraries and this package, by name."""
    import sacrebleu
    import torch
    import transformers

    import hf_capsule_mt

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sacrebleu": sacrebleu.__version__,
        "hf_capsule_mt": hf_capsule_mt.__version__,
    }
