"""Lists of results that become data frames where pandas is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


class Rows(list[T]):
    """A list of objects. `frame()` makes a data frame of it, nested objects as columns such as `load.requests`."""

    def frame(self) -> pandas.DataFrame:
        """One row per object, one column per field; lists stay lists."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("data frames need pandas: pip install pandas") from error
        return pandas.DataFrame([_flat(row) for row in self])


def _flat(row: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
