"""Slicing problems whose optimum the functions of TeraPipe's authors found, and the files that some of them name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("cases.json")
CONTENTS = json.loads(FILE.read_text())
CASES = {case["name"]: case for case in CONTENTS["cases"]}
ANSWERS = ("authors", "intended", "uniform_b1")


def sizes(case: dict[str, Any]) -> dict[str, int]:
    """The sizes of a case, as arguments of ``plan``."""
    return {"length": case["seq_len"], "batch": case["total_batch"], "stages": case["pipeline_stages"]}


def hinge(fl: float, a0: float, a1: float, kappa: float):
    """The formula of the analytic cases."""
    return lambda b, s, c: np.maximum(fl, a0 + a1 * b * s + kappa * b * s * (s + c))


def cost(case: dict[str, Any]) -> Any:
    """The cost of a case that needs no files."""
    return case["grid"] if case["kind"] == "table" else hinge(**case["params"])


def write_files(folder: Path, **changes: Any) -> Path:
    """Write the cases without their answers, and the measurements that some of them name; return the file of cases."""
    cases = [{key: value for key, value in case.items() if key not in ANSWERS} for case in CASES.values()]
    (folder / "cases.json").write_text(json.dumps({"cases": cases} | changes))
    latencies = {}
    for b, curve in enumerate(CONTENTS["layer"], 1):
        for s, plain in zip(range(8, 129, 8), curve, strict=True):
            for c in range(0, 129, 8):
                total = plain + (1e-5 + 1e-8 * b * s + 2e-8 * b * c + 8e-9 * b * s * c if c else 0.0)
                one = {"forward_mean": total / 3, "backward_mean": total * 2 / 3, "update_mean": 2e-4}
                latencies[f"{b}_{s}_{c}"] = one
    (folder / "synthetic_latency_model.mp_1.json").write_text(json.dumps(latencies))
    tokens = [2**power for power in range(10)]
    sending = {"tensor_sizes": tokens, "mean": [2e-5 + 1e-8 * count for count in tokens]}
    (folder / "synthetic_communication_latency.json").write_text(json.dumps(sending))
    return folder / "cases.json"
