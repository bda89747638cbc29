"""The model folders that engines load: the repository's tokenizers and templates, and no weights."""

import gzip
import json
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZERS = ROOT / "crates/blocks/tests/models"
GOLDEN = ROOT / "crates/gateway/tests/golden"
# Name of the golden file: tokenizer, and the template where it is not the tokenizer's own.
MODELS = {"qwen3": ("qwen3", None), "tiny-llama": ("tiny-llama", None), "strings": ("tiny-llama", "strings"), "parts": ("tiny-llama", "parts")}
CONTEXT = 4096


def make(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Writes the folder of a model; returns it."""
    tokenizer, template = MODELS[name]
    source = TOKENIZERS / tokenizer
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    packed = source / "tokenizer.json.gz"
    plain = gzip.decompress(packed.read_bytes()) if packed.exists() else (source / "tokenizer.json").read_bytes()
    (target / "tokenizer.json").write_bytes(plain)
    shutil.copy(source / "tokenizer_config.json", target)
    if template:
        shutil.copy(GOLDEN / f"{template}.jinja", target / "chat_template.jinja")
    configuration = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 1 + max(json.loads(plain)["model"]["vocab"].values()) + 64,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "torch_dtype": "bfloat16",
    }
    (target / "config.json").write_text(json.dumps(configuration))
    return target
