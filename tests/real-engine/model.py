"""Builds a tiny Llama with random weights for the repository's small tokenizer, or for the one in a folder. The output is
deterministic."""

import argparse
import json
import pathlib
import shutil

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

TOKENIZER = pathlib.Path(__file__).resolve().parents[2] / "crates/blocks/tests/models/tiny-llama"


def name_of_class(folder: pathlib.Path) -> None:
    """Some models name Llama's class for a tokenizer of another kind. The library knows them by their type, and takes the file
    as it is; the tiny model is of another type, so here the name is that of the class which does so."""
    path = folder / "tokenizer_config.json"
    configuration = json.loads(path.read_text())
    decoder = json.loads((folder / "tokenizer.json").read_text())["decoder"] or {}
    if configuration.get("tokenizer_class", "").startswith("LlamaTokenizer") and decoder.get("type") == "ByteLevel":
        path.write_text(json.dumps({**configuration, "tokenizer_class": "PreTrainedTokenizerFast"}))


def main(folder: pathlib.Path, source: pathlib.Path, hidden: int, layers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    name_of_class(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=-(-hidden // 512),  # the CPU kernels take 16 heads for each at most
        head_dim=32,
        max_position_embeddings=16384,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path, nargs="?", default=TOKENIZER)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    asked = parser.parse_args()
    main(asked.folder, asked.tokenizer, asked.hidden, asked.layers)
