"""What ``otel-rollout doctor`` finds: what is, what is wrong with it, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

ERROR: Final = "error"
"""Nothing, or not what was asked for, is traced or delivered."""
WARNING: Final = "warning"
"""Something may be missing; what is traced is safe."""
NOTE: Final = "note"


@dataclass(frozen=True)
class Finding:
    """One thing that keeps rollouts from being seen, or may: ``what`` is so, ``do`` this."""

    level: str
    about: str
    """A short name that stays the same, for scripts."""
    what: str
    do: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def line(self) -> str:
        """Return it as a line to read."""
        remedy = f" -> {self.do}" if self.do else ""
        return f"{self.level:<8} {self.what}{remedy}"
