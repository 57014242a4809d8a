"""Can be imported, and every name in it too; whatever is called raises."""

import importlib.machinery
import sys
from types import ModuleType

__version__ = "0.0.0+stub"

SUBMODULES = (
    "io",
    "models",
    "ops",
    "transforms",
    "transforms.functional",
    "transforms.v2",
    "transforms.v2.functional",
    "utils",
)


class Missing:
    """Stands for any class, function or constant."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise RuntimeError("torchvision is a stub in this environment")

    def __getattr__(self, name: str) -> "Missing":
        return Missing()


def __getattr__(name: str) -> Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing()


def _add_submodule(name: str) -> None:
    full_name = f"{__name__}.{name}"
    module = ModuleType(full_name, __doc__)
    module.__getattr__ = __getattr__  # type: ignore[method-assign]
    module.__spec__ = importlib.machinery.ModuleSpec(full_name, None, is_package=True)
    module.__path__ = []
    sys.modules[full_name] = module
    parent, _, child = full_name.rpartition(".")
    setattr(sys.modules[parent], child, module)


for _name in SUBMODULES:
    _add_submodule(_name)
