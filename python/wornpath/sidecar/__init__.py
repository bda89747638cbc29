"""Reports an engine's cache to a wornpath router."""

from .block_pool import watch_block_pool
from .reporter import Reporter

__all__ = ["Reporter", "watch_block_pool"]
