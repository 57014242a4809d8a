"""Wrapping functions and methods of other libraries, and undoing it.

Wrappers that a module holds must survive pickling: Ray pickles actor classes with everything they
refer to. So a wrapped function reduces to its name, and is found wrapped, or not, wherever it is
unpickled.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeVar

import wrapt

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
_Owner = TypeVar("_Owner", bound="ModuleType | type")
_Value = TypeVar("_Value")

MARK: Final = "__otel_rollout__"
"""Attribute of every function that we put in place; a plain True, which pickles by value too."""

_placed: weakref.WeakSet[Any] = weakref.WeakSet()
_decorated: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def resolve(module: str, qualified_name: str) -> Any:
    """Return ``module.qualified_name``."""
    target: Any = importlib.import_module(module)
    for part in qualified_name.split("."):
        target = getattr(target, part)
    return target


class ImportableWrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A function wrapper that pickles as an import of the function's name."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return resolve, (self.__module__, self.__qualname__)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)


def is_ours(function: Any) -> bool:
    """Return whether we put ``function`` in place."""
    return isinstance(function, ImportableWrapper) or MARK in getattr(function, "__dict__", ())


def records_itself(function: Any, decorated: Any) -> None:
    """Say that ``function`` records itself; a patch of ours takes ``decorated`` instead."""
    _decorated[function] = decorated


def _replacement(current: Any, make: Callable[[Any], Any]) -> Any:
    replacement = functools.wraps(current)(make(_decorated.get(current, current)))
    setattr(replacement, MARK, True)
    _placed.add(replacement)
    return replacement


def _noting_failure(
    change: Callable[[Patches, _Owner, str, _Value], bool],
) -> Callable[[Patches, _Owner | None, str, _Value], bool]:
    """Let a change that raises, or whose owner is not there, return False: others go on."""

    @functools.wraps(change)
    def attempt(self: Patches, owner: _Owner | None, name: str, value: _Value) -> bool:
        if owner is None:
            return False
        try:
            return change(self, owner, name, value)
        except Exception as error:
            self.failures.setdefault(_full_name(owner, name), error)
            return False

    return attempt


def _full_name(owner: Any, name: str) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}:{owner.__qualname__}.{name}"
    return f"{getattr(owner, '__name__', owner)}:{name}"


class Patches:
    """What one instrumentor has put in place.

    An owner may be ``None``, a class that this version of a library does not have: then, and where
    the owner lacks the function, nothing happens. ``failures``: what could not be patched though it
    is there, as ``module:Class.method``, to why. ``told``: whether people have been told of what
    is missing.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._hooked: set[str] = set()
        self.failures: dict[str, Exception] = {}
        self.told = False
        self.active = True

    def when_imported(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        """Call ``patch`` once ``module`` is imported, or now if it is; never imports it."""
        key = f"{module}:{getattr(patch, '__qualname__', patch)}"
        if key in self._hooked:
            return
        self._hooked.add(key)

        def hook(loaded: ModuleType) -> None:
            if self.active:
                patch(loaded)

        wrapt.register_post_import_hook(hook, module)

    @_noting_failure
    def function(self, module: ModuleType, name: str, wrapper: Wrapper) -> bool:
        """Wrap a module's function, under its name in every module that has imported it already."""
        current = getattr(module, name, None)
        if current is None or is_ours(current):
            return False
        wrapped = ImportableWrapper(current, wrapper)
        self._set(module, name, wrapped)
        package = module.__name__.partition(".")[0]
        for other_name, other in list(sys.modules.items()):
            if (
                other is not module
                and isinstance(other, ModuleType)
                and other_name.partition(".")[0] == package
                and vars(other).get(name) is current
            ):
                self._set(other, name, wrapped)
        return True

    @_noting_failure
    def variable(self, module: ModuleType, name: str, value: Any) -> bool:
        """Give a module's variable a value, where there is one and nothing has set it yet."""
        if vars(module).get(name, value) is not None:
            return False
        self._set(module, name, value)
        return True

    @_noting_failure
    def method(self, owner: type, name: str, make: Callable[[Any], Any]) -> bool:
        """Replace a class's own method by ``make(method)``, as a plain function.

        Plain, because Ray inspects the methods of actor classes, and a class of the user's own
        script is pickled by value with all its functions: what ``make`` returns may refer to
        functions of a module only, and leave the work to them.
        """
        current = vars(owner).get(name)
        if isinstance(current, classmethod) and not is_ours(current.__func__):
            self._set(owner, name, classmethod(_replacement(current.__func__, make)))
            return True
        if not inspect.isfunction(current) or is_ours(current):
            return False
        if getattr(current, "__isabstractmethod__", False):
            return False
        self._set(owner, name, _replacement(current, make))
        return True

    @_noting_failure
    def actor_method(self, actor_class: type, name: str, make: Callable[[Any], Any]) -> bool:
        """Replace a method of a class that Ray has just loaded, inherited or its own."""
        current = getattr(actor_class, name, None)
        if not inspect.isfunction(current) or current in _placed:
            return False
        replacement = _replacement(current, make)
        # Ray wraps what bears no such mark: so the caller's context is current in ours as well.
        vars(replacement).pop("__ray_tracing_wrapped__", None)
        self._set(actor_class, name, replacement)
        return True

    @_noting_failure
    def every_subclass(self, base: type, name: str, make: Callable[[Any], Any]) -> bool:
        """Replace method ``name`` of ``base`` and of every subclass, those to come included."""
        todo = [base]
        while todo:
            owner = todo.pop()
            self.method(owner, name, make)
            todo.extend(owner.__subclasses__())
        self._on_subclass(base, lambda owner: self.active and self.method(owner, name, make))
        return True

    def _on_subclass(self, base: type, patch: Callable[[type], Any]) -> None:
        before = vars(base).get("__init_subclass__")

        def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807
            if before is not None:
                before.__func__(cls, **kwargs)
            else:
                super(base, cls).__init_subclass__(**kwargs)  # type: ignore[arg-type]
            patch(cls)

        self._set(base, "__init_subclass__", classmethod(__init_subclass__))

    def _set(self, owner: Any, name: str, value: Any) -> None:
        missing = object()
        before = vars(owner).get(name, missing)
        setattr(owner, name, value)

        def undo() -> None:
            if before is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def undo(self) -> None:
        """Put back everything that was replaced, last first."""
        self.active = False
        self._hooked.clear()
        self.failures.clear()
        while self._undo:
            self._undo.pop()()
