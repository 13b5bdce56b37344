"""The fields of a Hugging Face ``config.json`` that a KV cache is made of, by all their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_LAYERS = 10_000
MAX_SIZE = 2**31 - 1
MAX_CONTEXT_TOKENS = 100_000_000
"""Ten times what the longest of today's models allow."""

_TEXT_PARTS = ("text_config", "language_config", "llm_config")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
)

# Classes whose default is as many KV heads as attention heads; elsewhere a missing field says
# nothing, since each class has a default of its own.
_MULTI_HEAD = frozenset(
    {
        *("baichuan", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox"),
        *("gptj", "internlm", "llama", "mpt", "opt", "persimmon", "phi", "qwen", "refinedweb"),
        *("refinedwebmodel", "stablelm"),
    }
)
_MULTI_QUERY = frozenset({"falcon", "gpt_bigcode", "refinedweb", "refinedwebmodel"})


class Uncountable(Exception):
    """The config does not say what is needed to count; the message is the reason."""


class Fields:
    """Reads the text model's part of a config; the whole of it where there is no such part."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._whole = config
        self._text = next(
            (config[name] for name in _TEXT_PARTS if isinstance(config.get(name), Mapping)), config
        )

    def get(self, name: str) -> Any:
        return self._text.get(name)

    def anywhere(self, name: str) -> Any:
        """Return a field that may also stand beside the text model's part."""
        found = self._text.get(name)
        return self._whole.get(name) if found is None else found

    def number(self, *names: str) -> int | None:
        """Return the first of these fields that is given, None if none is.

        Raises:
            Uncountable: it is no positive whole number.
        """
        for name in names:
            value = self._text.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 < value <= MAX_SIZE:
                raise Uncountable(f"{name} is {value!r}, not one positive number")
            return value
        return None

    def needed(self, *names: str) -> int:
        """Return the first of these fields that is given.

        Raises:
            Uncountable: none is, or it is no positive whole number.
        """
        value = self.number(*names)
        if value is None:
            raise Uncountable(f"the config leaves {names[0]} to the model's class")
        return value

    @property
    def model_type(self) -> str:
        """The family, without the ``_text`` of a nested part; '' if it is not named."""
        name = self._text.get("model_type") or self._whole.get("model_type")
        return name.lower().removesuffix("_text") if isinstance(name, str) else ""

    @property
    def layers(self) -> int:
        count = self.needed(*_LAYERS)
        if count > MAX_LAYERS:
            raise Uncountable(f"it names {count} layers")
        return count

    @property
    def context_tokens(self) -> int | None:
        """The longest request that the config itself allows, None if it names none."""
        tokens = self.number(*_CONTEXT)
        if tokens is not None and tokens > MAX_CONTEXT_TOKENS:
            raise Uncountable(f"it allows requests of {tokens} tokens")
        return tokens

    @property
    def kv_heads(self) -> int:
        """KV heads of an attention layer; Falcon's multi-query models keep one, whatever else."""
        grouped_falcon = self.get("new_decoder_architecture") is True
        if self.model_type in _MULTI_QUERY and self.get("multi_query") and not grouped_falcon:
            return 1
        count = self.number(*_KV_HEADS)
        if count is not None:
            return count
        if self.model_type in _MULTI_HEAD:
            return self.needed(*_HEADS)
        raise Uncountable("the config leaves num_key_value_heads to the model's class")

    @property
    def head_size(self) -> int:
        given = self.number("head_dim", "hidden_size_per_head")
        if given is not None:
            return given
        if self.model_type.startswith("gemma"):
            raise Uncountable("the config leaves head_dim to the model's class")
        size = self.needed(*_HIDDEN) // self.needed(*_HEADS)
        if size == 0:
            raise Uncountable("it has more attention heads than hidden units")
        return size
