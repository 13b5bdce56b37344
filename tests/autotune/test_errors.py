from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from autotune.errors import in_plain_words


class Everything(BaseModel):
    whole: int = 1
    number: float = Field(default=1.0, gt=0.0, le=9.0)
    pairs: dict[str, int] = Field(default_factory=dict)
    values: list[int] = Field(default_factory=list)
    text: str = Field(default="x", min_length=1)
    yes: bool = True


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"whole": "many"}, "must be a whole number"),
        ({"whole": 1.5}, "must be a whole number"),
        ({"number": "fast"}, "must be a number"),
        ({"number": 0}, "must be more than 0"),
        ({"number": 10}, "must be at most 9"),
        ({"pairs": [1]}, "must be `name: value` pairs"),
        ({"values": 3}, "must be a list"),
        ({"text": 3}, "must be a text"),
        ({"text": ""}, "must have at least 1 character"),
        ({"yes": "perhaps"}, "must be true or false"),
    ],
)
def test_no_word_of_a_programming_language_is_left(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Everything(**values)
    assert in_plain_words(caught.value.errors()[0]["msg"]) == said


def test_what_nobody_knows_stays_as_it_is() -> None:
    assert in_plain_words("knob max_num_seqs has no values") == "knob max_num_seqs has no values"
