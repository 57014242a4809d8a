"""Which libraries are installed, and which of the places that we patch are in them.

Nothing is imported (torch alone would take seconds): versions are those of the distributions, and
places are looked for in the libraries' source files.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from otel_rollout.commands.findings import WARNING, Finding
from otel_rollout.instrumentors.places import PLACES, installed_version
from otel_rollout.instrumentors.sources import is_there

OURS: Final = "otel-rollout"
_ALSO: Final = (
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-distro",
    "wrapt",
    "weave",
    "wandb",
    "transformers",
    "torch",
)


@dataclass
class Library:
    """A library that is there; ``found``: what each place gives, to where it is."""

    name: str
    version: str | None
    found: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"version": self.version, "found": self.found, "missing": self.missing}

    def lines(self) -> Iterator[str]:
        """Yield it as lines to read."""
        version = self.version or "a checkout, without a version"
        hooked = ", ".join(self.found) or "nothing"
        yield f"{self.name:<13} {version}: {hooked}"


def packages() -> dict[str, str]:
    """Return the versions of what matters to us and is installed."""
    versions = {name: installed_version(name) for name in (OURS, *_ALSO)}
    return {name: version for name, version in versions.items() if version is not None}


def libraries() -> list[Library]:
    """Return the instrumented libraries that are installed."""
    result = []
    for name, places in PLACES.items():
        roots = _folders(name)
        if not roots:
            continue
        library = Library(name, installed_version(name))
        for place in places:
            where = next((one for one in place.names if is_there(one, roots)), None)
            if where is not None:
                library.found[place.gives] = where
            elif place.expected_in(library.version):
                library.missing.append(place.gives)
        result.append(library)
    return result


def findings(found: Sequence[Library]) -> Iterator[Finding]:
    """Yield what is missing from libraries."""
    for library in found:
        if library.missing:
            yield Finding(
                WARNING,
                f"hooks:{library.name}",
                f"{library.name} {library.version or ''} has no place known to us for: "
                f"{', '.join(library.missing)}; these will be missing from traces",
                "see the versions that are tested (docs), or mark functions with rollout_op",
            )


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(one) for one in (spec and spec.submodule_search_locations) or ()]
