#!/usr/bin/env python3
"""Golden vectors of vLLM block hashes: python's own pickle and cbor2, hashed by hashlib and xxhash.

    pip install cbor2 xxhash && python3 vllm_vectors.py > vllm_vectors.json

Strings are rebuilt before use: pickle would otherwise memoize equal literals, which an engine never has.
"""
import hashlib, json, pickle, sys
import cbor2, xxhash

SERIALIZE = {
    "sha256": lambda v: pickle.dumps(v, protocol=5), "xxhash": lambda v: pickle.dumps(v, protocol=5),
    "sha256_cbor": lambda v: cbor2.dumps(v, canonical=True), "xxhash_cbor": lambda v: cbor2.dumps(v, canonical=True),
}
DIGEST = {a: (lambda b: hashlib.sha256(b).digest()) if a.startswith("sha") else xxhash.xxh3_128_digest for a in SERIALIZE}

def fresh(key):
    """The same value made of new objects; bytes are written as {"bytes": hex}."""
    if isinstance(key, list): return tuple(fresh(k) for k in key)
    if isinstance(key, dict): return bytes.fromhex(key["bytes"]) if "bytes" in key else fresh(key["repeat"]) * key["times"]
    return key.encode().decode() if isinstance(key, str) else key

EXTRAS = [
    None, [["cache_salt", "tenant-a"]], ["lora-x"], ["lora-x", "tenant-a"],
    [["lora", "sql", "/models/sql"], ["cache_salt", "tenant-ä-日本"]],
    [["lora", "same", "same"], ["cache_salt", "same"]],
    [["mm", "uuid-1", 3], ["mm", "uuid-2", -70000], ["mm", "uuid-3", 5000000000], ["mm", "uuid-4", -1], ["mm", "uuid-5", -5000000000]],
    [["mm", "negatives", -128, -129, -32768, -32769, -2147483648, -2147483649, 2147483648, 32767, 65536]],
    [["prompt_embeds", {"bytes": "00" * 40}]], [{"bytes": "ab" * 300}], [[]], [{"repeat": "n", "times": 300}],
    [{"repeat": "n", "times": 65535}, "after"], [{"repeat": "n", "times": 65536}, "after"], [{"repeat": "é", "times": 40000}],
]
# A token list is [start, step, count]: token i is (start + i * step) mod 2^32.
TOKENS = [
    [5, 0, 0], [7, 1, 1], [7, 1, 2], [7, 1, 3], [7, 1, 4], [250, 1, 16], [65530, 1, 16], [2147483640, 1, 16],
    [4294967290, 1, 8], [0, 77777, 128], [70000, 1, 13090], [70000, 1, 13095], [70000, 1, 13098], [70000, 1, 13099],
    [70000, 1, 13100], [70000, 1, 13101], [70000, 1, 13102], [70000, 1, 26205], [70000, 1, 40000], [0, 1, 33000],
]
SEEDS = ["vllm-none-hash", "0", "42", "", "s" * 255, "s" * 256]

def main():
    vectors = []
    cases = [(t, None) for t in TOKENS] + [(TOKENS[5], e) for e in EXTRAS[1:]] + [([70000, 1, 13099], EXTRAS[4]), ([1, 1, 2], EXTRAS[4])]
    for algo in SERIALIZE:
        seeds = {s: DIGEST[algo](SERIALIZE[algo](s)).hex() for s in SEEDS}
        parent = bytes.fromhex(seeds["vllm-none-hash"])
        blocks = []
        for tokens, extra in cases:
            start, step, count = tokens
            ids = tuple((start + i * step) % 2**32 for i in range(count))
            value = (parent, ids, fresh(extra) if extra else None)
            blocks.append({"tokens": tokens, "extra": extra, "hash": DIGEST[algo](SERIALIZE[algo](value)).hex()})
        vectors.append({"algorithm": algo, "seeds": seeds, "blocks": blocks})
    json.dump(vectors, sys.stdout, indent=1, ensure_ascii=False)
    print()

main()
