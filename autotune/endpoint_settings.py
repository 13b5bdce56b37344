"""The servers that ``endpoints`` of ``autotune.yaml`` names, and the keys that open them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from autotune.errors import UsageError, in_plain_words
from autotune.user_files import read_small
from objectives.errors import nearest

Kind = Literal["vllm", "openai"]
"""``vllm`` takes token ids and forced lengths; ``openai`` is any other that speaks the API."""

NO_KEY = "EMPTY"
"""What is sent where no key is set, as the documentation of vLLM does."""

_RESERVED_NAMES = ("default",)
Seconds = Annotated[float, AllowInfNan(False)]
"""A number of them; what is none, or has no end, is refused as that."""

_EXAMPLE = "for example local: {base_url: http://127.0.0.1:8000/v1, model: NAME}"
_KEY_HINT = "write api_key_env: NAME of a variable, or api_key_file: PATH"


class EndpointSettings(BaseModel):
    """One server that speaks the OpenAI API.

    Attributes:
        base_url: what the API's paths follow, ending in ``/v1`` with nearly all servers.
        model: as the server calls it.
        api_key_env: name of the environment variable with the key.
        api_key_file: file with the key, and nothing else.
        kind: see ``Kind``; None to ask the server.
        silence_timeout_s: longest time without a token while a request waits for one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    model: str = Field(min_length=1)
    api_key_env: str | None = Field(default=None, min_length=1)
    api_key_file: Path | None = None
    kind: Kind | None = None
    silence_timeout_s: Seconds = Field(default=120.0, gt=0.0, le=86_400.0)

    @model_validator(mode="before")
    @classmethod
    def _no_key_in_the_file(cls, given: Any) -> Any:
        if isinstance(given, dict):
            given = {str(name).replace("-", "_"): value for name, value in given.items()}
            if any(name in given for name in ("api_key", "key", "token", "password")):
                raise ValueError(f"a key does not belong into a file of settings: {_KEY_HINT}")
            if given.get("api_key_env") is not None and given.get("api_key_file") is not None:
                raise ValueError("has both api_key_env and api_key_file: keep one of them")
        return given

    @field_validator("base_url")
    @classmethod
    def _an_address(cls, base_url: str) -> str:
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError:
            raise ValueError("is no URL: its port or host cannot be read") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ValueError("must be a URL such as http://127.0.0.1:8000/v1")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"must be without user and password: {_KEY_HINT}")
        if parts.query or parts.fragment:
            raise ValueError("must end with its path, without ? and #")
        return base_url.rstrip("/")

    @property
    def key_words(self) -> str:
        """Where the key comes from, in words; '' if there is none."""
        if self.api_key_env is not None:
            return f"the variable {self.api_key_env}"
        return "" if self.api_key_file is None else f"the file {self.api_key_file}"

    def key(self, environ: Mapping[str, str]) -> str:
        """Return the key, ``NO_KEY`` where none is set.

        Raises:
            UsageError: the variable or the file is not there, is empty, or holds no key.
        """
        if self.api_key_env is not None:
            found = environ.get(self.api_key_env)
            if found is None:
                raise UsageError(
                    f"{self.key_words}, which has the key, is not set",
                    hint=f"export {self.api_key_env}=… in the shell that runs autotune",
                )
        elif self.api_key_file is not None:
            try:
                found = read_small(self.api_key_file.expanduser())
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
                raise UsageError(
                    f"cannot read the key from {self.api_key_file}: {reason}",
                    hint="api_key_file names a file with the key, and nothing else",
                ) from None
        else:
            return NO_KEY
        key = found.strip()
        if not key:
            raise UsageError(
                f"{self.key_words}, which should have the key, is empty",
                hint=f"put the key there, or {NO_KEY} for a server that asks for none",
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise UsageError(
                f"{self.key_words} holds no key: it has blanks, line breaks or other characters "
                "that no header can carry",
                hint="put the key there, and nothing else",
            )
        return key


def parse_endpoints(given: object, *, where: str) -> dict[str, EndpointSettings]:
    """Return the endpoints by name, from the value of ``endpoints``.

    Args:
        given: a mapping of mappings, as YAML has it; None for none.
        where: what errors begin with, the file.

    Raises:
        UsageError: something in it cannot be used; no value is quoted, as it may be a key.
    """
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise UsageError(f"{where}: endpoints: must be `NAME: settings` pairs", hint=_EXAMPLE)
    for name in given:
        if str(name) in _RESERVED_NAMES or str(name).endswith((".yaml", ".yml")):
            raise UsageError(
                f"{where}: endpoints: {name} cannot be the name of one",
                hint="autotune compare takes it for an engine: choose another",
            )
    return {
        str(name): _parse(value, f"{where}: endpoints: {name}") for name, value in given.items()
    }


def _parse(given: object, where: str) -> EndpointSettings:
    if isinstance(given, EndpointSettings):
        return given
    if not isinstance(given, dict):
        raise UsageError(f"{where}: must be `name: value` pairs", hint=_EXAMPLE)
    try:
        return EndpointSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        known = list(EndpointSettings.model_fields)
        raise UsageError(
            f"{where}: unknown setting {name!r}",
            hint=nearest(name, known) or f"known are {', '.join(known)}",
        )
    if first["type"] == "missing":
        raise UsageError(f"{where}: {name} is missing", hint=_EXAMPLE)
    words = in_plain_words(first["msg"].removeprefix("Value error, "))
    raise UsageError(f"{': '.join(filter(None, [where, name]))}: {words}", hint=_EXAMPLE)


def endpoint_named(
    endpoints: Mapping[str, EndpointSettings], name: str, *, where: str
) -> EndpointSettings:
    """Return the endpoint of that name.

    Raises:
        UsageError: there is none.
    """
    if name in endpoints:
        return endpoints[name]
    raise UsageError(
        f"{where} names no endpoint {name!r}",
        hint=nearest(name, list(endpoints))
        or (f"it names {', '.join(endpoints)}" if endpoints else f"add endpoints: {_EXAMPLE}"),
    )
