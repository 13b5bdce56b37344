"""Which limits can change on a running engine; knows nothing of vLLM."""

from __future__ import annotations

from autotune.candidates.lattice import SEQS, TOKENS

THRESHOLD = "long_prefill_token_threshold"

LIVE_LIMITS = (TOKENS, SEQS, THRESHOLD)
"""Engine arguments that the scheduler reads anew in each step, by their names."""
