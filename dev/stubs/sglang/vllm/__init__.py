"""Not vLLM: only the kernels in `_custom_ops` that SGLang falls back to on a plain CPU."""

__version__ = "0.0.0+stub"
