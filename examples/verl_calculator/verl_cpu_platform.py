"""A CPU as verl's platform: `VERL_USE_EXTERNAL_MODULES=verl_cpu_platform VERL_PLATFORM=cpu`.

verl's servers and its weight sync run on it unchanged; `ray.init(num_gpus=N)` declares as many
pretended devices. `train.py --engine vllm` uses it.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import torch
import wrapt
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

_device = types.ModuleType("verl_cpu_device")
for _name in (
    "synchronize",
    "empty_cache",
    "ipc_collect",
    "set_device",
    "manual_seed",
    "manual_seed_all",
    "reset_peak_memory_stats",
):
    setattr(_device, _name, lambda *args, **kwargs: None)
for _name in (
    "memory_allocated",
    "memory_reserved",
    "max_memory_allocated",
    "max_memory_reserved",
    "current_device",
):
    setattr(_device, _name, lambda *args, **kwargs: 0)
vars(_device).update(device_count=lambda: 1, is_available=lambda: True)


@PlatformRegistry.register("cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: Any) -> None:
        pass

    def synchronize(self, device_index: Any = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: Any) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: Any = None) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights go through shared memory

    def cudart(self) -> None:
        return None


if "vllm" in sys.modules:  # in the engine's worker process, before the model is built
    import vllm.model_executor.layers.utils as _utils

    _dispatch = _utils.dispatch_cpu_unquantized_gemm
    # vLLM on a CPU repacks linear weights and drops the originals; a weight sync needs them.
    _utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: _dispatch(
        layer, remove_weight=False
    )


def _pause_as_verl_asks(module: types.ModuleType) -> None:
    """Take verl 0.9's words for pausing, which vLLM 0.32 has given up for `mode`."""
    pause = module.AsyncLLM.pause_generation

    async def pause_generation(self: Any, **given: Any) -> None:
        if given.pop("wait_for_inflight_requests", None) is False:
            given["mode"] = "abort"
        await pause(self, **given)

    module.AsyncLLM.pause_generation = pause_generation


wrapt.register_post_import_hook(_pause_as_verl_asks, "vllm.v1.engine.async_llm")
