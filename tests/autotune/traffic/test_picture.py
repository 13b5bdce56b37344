from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.traffic.inspect import describe
from autotune.traffic.picture import WIDTH, bar, picture, sparkline
from autotune.traffic.synth import synthesize
from objectives.classes import LengthClass
from tests.autotune.traffic.examples import request, trace

EXPECTED = """\
Source      test
Requests    13 in 7.0 s
Arrivals    1.86 requests/s, peak 2 in one second
Burstiness  gaps vary by 0.49 of their mean, dispersion per second 0.33
            (Poisson: 1)
Prompts     p50 220, p95 1392, p99 2678, max 3000, total 5520 tokens
Outputs     p50 5, p95 31, p99 62, max 70, total 130 tokens
Longest     3070 tokens with its output: max_model_len 3072 is enough
Prefixes    a prefix cache can serve at most 92.3% of prompt blocks
Chunking    7.7% of prompts are longer than 2048 tokens: they take several
            steps, so chunked prefill is in effect at this budget.

Arrivals in each 0.1 s, at most 1
  |█    █    █    █    █    █    █    █    █    █    █    █              █|
   0 s                                                               7.1 s

Prompt tokens (each row doubles)
         64-127       2  15.4% ████████████
        128-255       6  46.2% ████████████████████████████████████
        256-511       4  30.8% ████████████████████████
       512-1023       0   0.0%
      1024-2047       0   0.0%                                     < cut 1500
      2048-4095       1   7.7% ██████

Output tokens (each row doubles)
            4-7      12  92.3% ████████████████████████████████████
           8-15       0   0.0%
          16-31       0   0.0%
          32-63       0   0.0%
         64-127       1   7.7% ███

Classes of prompt length
  short        0-1500             12 requests  92.3%  p50 210 in, 5 out
  long         1500-               1 requests   7.7%  p50 3000 in, 70 out"""


def test_the_picture_of_a_small_trace() -> None:
    built = trace(
        *(request(second / 2, prompt=100 + 20 * second, output=5) for second in range(12)),
        request(7.0, prompt=3000, output=70),
    )
    classes = [LengthClass("short", 0, 1500), LengthClass("long", 1500, None)]
    assert picture(built, describe(built, classes=classes)) == EXPECTED


@pytest.mark.parametrize("scenario", ["short_chat", "long_documents", "mixed"])
@pytest.mark.parametrize("duration_s", [3.0, 100.0, 5000.0])
@pytest.mark.parametrize("width", [WIDTH, 66, 40])
def test_nothing_is_wider_than_a_terminal(scenario: str, duration_s: float, width: int) -> None:
    built = synthesize(scenario, rate=1, duration_s=duration_s, seed=1)
    lines = picture(built, describe(built), width=width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert not any("\x1b" in line for line in lines)


def test_a_mark_without_room_stands_below_its_bar() -> None:
    built = trace(*(request(n / 2, prompt=1100, output=5) for n in range(12)))
    classes = [LengthClass("short", 0, 1500), LengthClass("long", 1500, None)]
    lines = picture(built, describe(built, classes=classes), width=40).splitlines()
    at = next(n for n, line in enumerate(lines) if "1024-2047" in line)
    assert lines[at + 1] == f"{'< cut 1500':>40}"
    assert picture(built, describe(built), width=500) == picture(built, describe(built))


def test_one_request_has_a_picture() -> None:
    built = trace(request(0.0))
    text = picture(built, describe(built))
    assert "too few requests to tell" in text
    assert "Classes" not in text


def test_unknown_prefixes_are_said() -> None:
    built = trace(request(0.0), prefixes_known=False)
    assert "Prefixes    unknown" in picture(built, describe(built))


def test_sparkline_shows_every_arrival() -> None:
    assert sparkline(np.array([0, 1, 50, 100])) == " ▁▄█"
    assert sparkline(np.array([0, 0])) == "  "


@given(st.floats(0, 1), st.integers(1, 60))
def test_bars_are_as_long_as_their_share(share: float, width: int) -> None:
    drawn = bar(share, width)
    assert len(drawn) <= width
    assert (drawn == "") == (share == 0)
    assert abs(len(drawn) - share * width) <= 1
