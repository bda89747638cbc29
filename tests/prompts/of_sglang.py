"""What SGLang makes of the requests: its own chat and completion servers, called without an engine.

    PYTHONPATH=… ~/.cache/wornpath-engine/venv/bin/python tests/prompts/of_sglang.py [--texts FOLDER] [MODEL…]

Needs SGLang in the environment of `tests/real-engine/install`: its package, `orjson`, and a module `sgl_kernel` that does nothing.
"""

import argparse
import copy
import pathlib
import sys
import tempfile
import types
from importlib import metadata

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases
import golden
import models


class Front:
    """SGLang's servers of one model, with what they need of a tokenizer manager."""

    def __init__(self, model: pathlib.Path):
        from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
        from sglang.srt.entrypoints.openai import serving_chat
        from sglang.srt.parser.template_manager import TemplateManager
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer
        from transformers import AutoConfig

        self.tokenizer = get_tokenizer(str(model))
        configuration = types.SimpleNamespace(
            hf_config=AutoConfig.from_pretrained(model), is_multimodal=False, context_len=models.CONTEXT,
            get_default_sampling_params=dict,
        )  # fmt: skip
        manager = types.SimpleNamespace(
            tokenizer=self.tokenizer, model_config=configuration, config_value=lambda name: None, model_path=str(model),
            served_model_name="m", server_args=types.SimpleNamespace(chat_template=None), processor=None,
        )  # fmt: skip
        templates = TemplateManager()
        templates.load_chat_template(manager, None, str(model))
        # What a server's arguments say, which there are none of.
        serving = types.SimpleNamespace(default_chat_template_kwargs=None, trust_request_chat_template=False)
        serving_chat.get_serving = lambda: serving
        serving_chat.get_model = lambda: types.SimpleNamespace(context_length=models.CONTEXT, trust_request_chat_template=False)
        self.chat = serving_chat.OpenAIServingChat(manager, templates)
        self.anthropic = AnthropicServing(self.chat)

    def tokens(self, path: str, body: dict) -> list[int] | None:
        """The tokens of a request; none if it is refused."""
        try:
            return self._tokens(path, copy.deepcopy(body))
        except Exception:
            return None

    def _tokens(self, path: str, body: dict) -> list[int] | None:
        from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest

        if path == cases.TEXT:
            prompt = CompletionRequest(**body).prompt
            if not prompt or (isinstance(prompt, list) and all(not one for one in prompt)):
                return None
            if isinstance(prompt, list) and isinstance(prompt[0], (list, str)):
                prompt = prompt[0]
            return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if path == cases.RESPONSES:
            return None
        if path == cases.MESSAGES:
            request = self.anthropic._convert_to_chat_completion_request(AnthropicMessagesRequest(**body))
        else:
            request = ChatCompletionRequest(**body)
        if self.chat._validate_request(request):
            return None
        # As `_convert_to_internal_request` does before it processes messages.
        if request.chat_template_kwargs:
            effort = request.chat_template_kwargs.pop("reasoning_effort", None)
            if effort is not None:
                request.reasoning_effort = effort
        return list(self.chat._process_messages(request, False).prompt_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=pathlib.Path, help="a folder for the prompts in full")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "wornpath-prompts")
    parser.add_argument("models", nargs="*", default=list(models.MODELS))
    asked = parser.parse_args()
    golden.write_requests()
    for name in asked.models:
        front = Front(models.make(name, asked.folder))
        prompts = {name: front.tokens(path, body) for name, path, body in cases.all_requests()}
        golden.write("sglang", metadata.version("sglang"), name, prompts, asked.texts, front.tokenizer.decode)


if __name__ == "__main__":
    main()
