"""Reports the changes of a block pool like vLLM's."""

import functools

from .reporter import Reporter


def watch_block_pool(pool, reporter: Reporter) -> None:
    """Wraps the pool's methods: they behave as before, and each change is put into the reporter's queue.

    A pool has `cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, block_size, …)`,
    `_maybe_evict_cached_block(block)` and `reset_prefix_cache()`; a block has `block_hash` while it is cached.
    """
    _wrap(pool, "cache_full_blocks", lambda call: functools.partial(_cached, reporter, call))
    _wrap(pool, "_maybe_evict_cached_block", lambda call: functools.partial(_evicted, reporter, call))
    _wrap(pool, "reset_prefix_cache", lambda call: functools.partial(_reset, reporter, call))


def _wrap(pool, name, wrapper) -> None:
    method = getattr(pool, name, None)
    if method is None:
        raise TypeError(f"{type(pool).__name__} has no `{name}`; watch_block_pool expects a block pool like vLLM's")
    setattr(pool, name, wrapper(method))


def _cached(reporter, call, request, blocks, num_cached_blocks, num_full_blocks, block_size, *more, **named):
    result = call(request, blocks, num_cached_blocks, num_full_blocks, block_size, *more, **named)
    new = blocks[num_cached_blocks:num_full_blocks]
    if new and all(block.block_hash is not None for block in new):
        parent = blocks[num_cached_blocks - 1].block_hash if num_cached_blocks else None
        tokens = request.all_token_ids[num_cached_blocks * block_size : num_full_blocks * block_size]
        lora = getattr(request, "lora_request", None)
        reporter.stored(
            [block.block_hash for block in new],
            parent,
            tokens,
            block_size,
            lora=lora.lora_name if lora else None,
            salt=getattr(request, "cache_salt", None),
        )
    return result


def _evicted(reporter, call, block):
    name = block.block_hash
    is_evicted = call(block)
    if is_evicted and name is not None:
        reporter.evicted([name])
    return is_evicted


def _reset(reporter, call):
    is_reset = call()
    if is_reset:
        reporter.cleared()
    return is_reset
