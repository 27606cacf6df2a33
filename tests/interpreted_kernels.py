"""Where there is no GPU, Triton interprets its kernels.

Import this before anything imports Triton, as Transformers does.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
