"""Traces, budgets and classes that cannot be meant."""

from __future__ import annotations

import gzip

from tests.autotune.cli.bad_cases import (
    MODEL,
    TUNE,
    Case,
    file_of,
    request,
    trace_of,
    with_studies,
)

INSPECT = ("trace", "inspect", "t.jsonl")

TRACES = (
    Case("a trace that is not there", INSPECT, 2, "No such file", "trace"),
    Case("an empty trace", INSPECT, 2, "t.jsonl: the file is empty", "demo:mixed", trace_of()),
    Case("a folder in place of a trace", ("trace", "inspect", "."), 2, ".", "file"),
    Case(
        "a line that is cut off",
        INSPECT, 2, "t.jsonl:2: invalid JSON", "cut off", trace_of(request(), request()[:20]),
    ),
    Case(
        "a line that is not UTF-8", INSPECT, 2, "t.jsonl:2: not UTF-8", "UTF-8",
        trace_of(request(), b"{\xff}"),
    ),
    Case("a line that is no object", INSPECT, 2, "t.jsonl:1", "known are", trace_of("[1, 2]")),
    Case(
        "a compressed trace",
        ("trace", "inspect", "t.jsonl.gz"), 2, "t.jsonl.gz", "gunzip",
        file_of("t.jsonl.gz", gzip.compress(request().encode(), mtime=0)),
    ),
    Case(
        "a missing field", INSPECT, 2, "output_length: field required", "from 1",
        trace_of(request(output_length=None))
    ),
    Case(
        "a misspelt field",
        INSPECT, 2, "t.jsonl:1: unknown field 'input_len'", "did you mean 'input_length'?",
        trace_of(request(input_length=None, input_len=10)),
    ),
    Case(
        "a negative length", INSPECT, 2, "t.jsonl:1: input_length", "from 1",
        trace_of(request(input_length=-1)),
    ),
    Case(
        "a length of zero", INSPECT, 2, "t.jsonl:1: output_length", "from 1",
        trace_of(request(output_length=0)),
    ),
    Case(
        "a length that is a text", INSPECT, 2, "t.jsonl:1: input_length", "without quotes",
        trace_of(request(input_length="ten")),
    ),
    Case(
        "an absurd length", INSPECT, 2, "t.jsonl:1: input_length", "to 10000000",
        trace_of(request(input_length=10**12)),

    ),
    Case(
        "a negative time", INSPECT, 2, "t.jsonl:1: timestamp", "from 0",
        trace_of(request(timestamp=-5)),
    ),
    Case(
        "a time that is no number", INSPECT, 2, "t.jsonl:1: timestamp", "a number from 0",
        trace_of(request(timestamp=float("nan"))),
    ),
    Case(
        "times in seconds since 1970", INSPECT, 2, "t.jsonl", "1000",
        trace_of(request(timestamp=1_700_000_000), request(timestamp=1_700_000_001)),
    ),
    Case(
        "rows out of order",
        INSPECT, 0, "Rows out of order", "", trace_of(request(timestamp=9), request(timestamp=3)),
    ),
    Case(
        "requests at the same time",
        INSPECT, 0, "", "", trace_of(request(timestamp=3), request(timestamp=3)),
    ),
    Case("a trace of one request", INSPECT, 0, "", "", trace_of(request())),
    Case(
        "a misspelt demo trace", ("trace", "inspect", "demo:mixd"), 2,
        "no demo trace 'demo:mixd'", "demo:mixed",
    ),
    Case(
        "a window that is none", ("trace", "window", "demo:mixed", "w.jsonl", "--window", "soon"),
        2, "'soon' is no window", "busiest:10m",
    ),
    Case(
        "a name that no trace may have", ("trace", "import", "demo:mixed", "t.txt"), 2,
        "does not end in .jsonl", "write to t.txt.jsonl",
    ),
    Case(
        "fields by other names", INSPECT, 2, "unknown field 'time'",
        "rename time to timestamp (in ms), prompt_tokens to input_length",
        trace_of('{"time": 1.5, "prompt_tokens": 7, "completion_tokens": 9}'),
    ),
    Case(
        "times that may be seconds", INSPECT, 0, "multiply times in seconds by 1000", "",
        trace_of(request(timestamp=0.5), request(timestamp=600)),
    ),
    Case(
        "hash ids in some rows only", INSPECT, 0, "taken to share nothing: 1", "",
        trace_of(request(hash_ids=[1]), request()),
    ),
    Case(
        "a window without a request",
        ("trace", "window", "demo:mixed", "w.jsonl", "--window", "900:910"),
        2, "no request between 900 s and 910 s",
        "the trace ends at",
    ),
    Case(
        "a load of nothing", ("trace", "load", "demo:mixed", "l.jsonl", "--load", "0"), 2,
        "load 0: must be above 0 and at most 100", "0.5 half of it",
    ),
    Case(
        "a load that leaves no request",
        ("trace", "load", "demo:mixed", "l.jsonl", "--load", "0.0001"), 2,
        "load 0.0001 leaves none of 387 requests", "a longer trace",
    ),
    Case(
        "a way that a load cannot be reached by",
        ("trace", "load", "demo:mixed", "l.jsonl", "--load", "2", "--method", "thin"), 2,
        "thin lowers a load, and 2 does not", "--method superpose",
    ),
    Case(
        "a place where no trace can be written",
        ("trace", "import", "demo:mixed", "none/t.jsonl"), 2, "there is no folder none",
        "a folder that you may write",
    ),
    Case(
        "a bad trace for a file that is there",
        ("trace", "import", "t.jsonl", "t.jsonl"), 2, "t.jsonl:2: ", "cut off",
        trace_of(request(), "{"),
    ),
    Case(
        "synthetic traffic without a rate",
        ("trace", "synth", "s.jsonl", "--scenario", "mixed", "--rate", "0", "--duration", "9"),
        2, "the rate is 0", "trace synth --help",
    ),
    Case(
        "lengths whose median is beyond their end",
        (
            "trace", "synth", "s.jsonl", "--scenario", "mixed", "--rate", "1", "--duration", "9",
            "--chat-prompt", "median=20000",
        ),
        2, "--chat-prompt: no distribution", "give max as well",
    ),
    Case(
        "lengths of documents where there are none",
        (
            "trace", "synth", "s.jsonl", "--scenario", "short_chat", "--rate", "1",
            "--duration", "9", "--document-prompt", "max=9000",
        ),
        2, "has no documents", "--scenario mixed",
    ),
    Case(
        "a column that Azure's traces do not have",
        ("trace", "inspect", "a.csv"), 2, "a.csv:1: ", "did you mean 'GeneratedTokens'?",
        file_of("a.csv", "TIMESTAMP,ContextTokens,Generated\n2024-05-10 00:00:00,5,5\n"),
    ),
    Case(
        "a page of the web in place of a trace", ("trace", "import", "a.json", "t.jsonl"), 2,
        "a.json: is an HTML page", "download it once more", file_of("a.json", "<!doctype html>"),
    ),
    Case(
        "a data set without times", ("trace", "import", "a.json", "t.jsonl"), 2,
        "a.json: conversations have no times", "--rate 5",
        file_of("a.json", '[{"conversations": [{"value": "a"}, {"value": "b"}]}]'),
    ),
    Case(
        "results without their requests", ("trace", "inspect", "a.json"), 2,
        "a.json: has the figures of a benchmark", "--save-detailed",
        file_of("a.json", '{"request_throughput": 1.5, "total_input_tokens": 7}'),
    ),
    Case(
        "a rate for a trace that has times",
        ("trace", "import", "t.jsonl", "u.jsonl", "--rate", "5"), 2,
        "--rate means nothing for t.jsonl", "leave --rate out", trace_of(request()),
    ),
    Case(
        "a salt that can be guessed",
        ("trace", "redact", "demo:mixed", "t.jsonl", "--salt-file", "salt"), 2,
        "the salt has 3 bytes", "head -c 32", file_of("salt", "abc"),
    ),
)  # fmt: skip

BUDGETS = (
    Case(
        "a misspelt metric", (*TUNE, "--budget", "ttfd_p95:800"), 2,
        "unknown metric 'ttfd'", "did you mean 'ttft'?",
    ),
    Case("an unknown aggregate", (*TUNE, "--budget", "ttft_p59:800"), 2, "'p59'", "'p99'"),
    Case(
        "a limit that is no number", (*TUNE, "--budget", "ttft_p95:fast"), 2, "'fast'",
        "as in 'ttft_p95:800'",
    ),
    Case("an unknown unit", (*TUNE, "--budget", "ttft_p95:800h"), 2, "unit 'h'", "use ms"),
    Case(
        "a limit of zero", (*TUNE, "--budget", "ttft_p95:0"), 2, "positive",
        "leave the line out",
    ),
    Case(
        "a limit given twice", (*TUNE, "--budget", "ttft_p95:800 ttft_p95:900"), 2,
        "limits ttft_p95 twice", "keep the stricter",
    ),
    Case(
        "a class that does not exist",
        (*TUNE, "--budget", "itl_p99@chat:60", "--classes", "chats:0-2000 long:2000-"), 2,
        "no class 'chat'", "did you mean 'chats'?",
    ),
    Case(
        "a limit on a class without requests",
        (*TUNE, "--budget", "ttft_p95@long:500", "--classes", "short:0-9000 long:9000-"), 2,
        "ttft_p95@long cannot be measured: the traffic has no request of class 'long'",
        "leave that limit out",
    ),
    Case(
        "a limit on gaps where no answer has two tokens",
        ("tune", *MODEL, "--trace", "t.jsonl", "--budget", "tpot_p95:60"), 2,
        "tpot_p95 cannot be measured: the traffic has no request with a second token",
        "choose another window", trace_of(request(output_length=1)),
    ),
    Case(
        "classes that overlap", (*TUNE, "--classes", "short:0-2001 long:2000-"), 2,
        "overlap", "short:0-2000",
    ),
    Case(
        "a budget that nothing keeps", ("best", "--study-name", "slow"), 3,
        "Nothing keeps the budget.", "Nearest is ", with_studies(),
    ),
    Case(
        "a budget that nothing keeps, to a file that is there",
        ("best", "--study-name", "slow", "--output", "autotune.db"), 3,
        "Nothing keeps the budget.", "Nearest is ", with_studies(),
    ),
    Case(
        "a study without a finished trial", ("best", "--study-name", "new"), 2,
        "no finished trial yet", "autotune trials", with_studies(),
    ),
)  # fmt: skip
