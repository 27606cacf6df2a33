"""Fast inference with trained models: int8 on the CPU."""

from hf_capsule_mt.inference.int8.quantization import quantize_for_cpu

__all__ = ["quantize_for_cpu"]
