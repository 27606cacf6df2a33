"""The part of the package that is compiled, where there is a C compiler; everything else is in pyproject.toml."""

from setuptools import Extension, setup

HEADERS = (
    "vector_math",
    "routing",
    "em_routing",
    "dynamic_routing",
    "guided_scores",
    "int8_linear",
    "marian_step",
    "aggregation",
)

setup(
    ext_modules=[
        Extension(
            "hf_capsule_mt._native",
            sources=["hf_capsule_mt/native/module.c"],
            depends=[f"hf_capsule_mt/native/{name}.h" for name in HEADERS],
            extra_compile_args=["-O2", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-pthread"],
            extra_link_args=["-pthread"],
            libraries=["m"],
            py_limited_api=True,
            optional=True,  # without a compiler the package is installed all the same, and routes slower
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
