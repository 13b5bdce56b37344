"""A model's own tokenizer and chat template, for ids of token blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from autotune.errors import EnvironmentFault, UsageError
from autotune.traffic.capture.asked import Prompt


class Tokenizer(Protocol):
    """Counts a prompt in tokens."""

    def tokens(self, prompt: Prompt) -> Sequence[int] | None:
        """Return the tokens of a prompt, None if it has parts that this cannot count."""


class HubTokenizer:
    """The tokenizer of a folder or of the hub, through transformers.

    Args:
        name: of the folder, or at the hub.
        load: makes transformers' tokenizer, by default ``AutoTokenizer.from_pretrained``.

    Raises:
        EnvironmentFault: transformers is not installed.
        UsageError: there is no such tokenizer.
    """

    def __init__(self, name: str, *, load: Callable[[str], Any] | None = None) -> None:
        try:
            from jinja2 import TemplateError

            if load is None:
                # Takes seconds: it imports torch.
                from transformers import AutoTokenizer

                load = AutoTokenizer.from_pretrained
        except ImportError as error:
            raise EnvironmentFault(
                "--tokenizer needs transformers and jinja2",
                hint="pip install transformers jinja2, or leave --tokenizer out",
            ) from error
        try:
            self._tokenizer: Any = load(name)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--tokenizer {name}: {' '.join(str(error).split())[:200]}",
                hint="name a folder with a tokenizer, or a model of the hub",
            ) from error
        # What templates and tokenizers raise of messages that they cannot mean.
        self._refusals = (TemplateError, ValueError, TypeError, KeyError, AttributeError)

    def tokens(self, prompt: Prompt) -> Sequence[int] | None:
        if prompt.tokens is not None:
            return prompt.tokens
        try:
            if prompt.raw:
                return list(self._tokenizer(prompt.text)["input_ids"])
            if prompt.messages is None:
                return None
            further = {"add_generation_prompt": True, **prompt.template}
            return list(
                self._tokenizer.apply_chat_template(
                    [dict(each) for each in prompt.messages], return_dict=False, **further
                )
            )
        except self._refusals:
            return None
