"""What a report says in sentences: the decision, why, and what to do."""

from __future__ import annotations

from typing import Any

from gradjury.verify.case import Case, Node
from gradjury.verify.report import definition
from gradjury.verify.report.table import FINE, Row
from gradjury.verify.report.text import listed, number, safe

Json = dict[str, Any]


def witnesses(data: Json) -> str:
    """Who testified, with versions where known, and who could not."""
    names = []
    for name, about in data.get("witnesses", {}).items():
        known = about.get("identity") or {}
        version = " ".join(str(known[key]) for key in ("version", "device") if known.get(key))
        names.append(f"{safe(name)} {safe(version)}".rstrip())
    names += [f"{safe(f['witness'])} failed" for f in data.get("failures", [])]
    return ", ".join(names)


def headline(data: Json, found: list[Row]) -> tuple[str, str, list[str]]:
    """The decision in capitals with its sentence, its colour, and the codes of the causes that lead to it."""
    decision, wrong = data["decision"], data["wrong"]
    causes = [cause for cause in data["causes"] if cause["witness"] in wrong]
    codes = list(dict.fromkeys(cause["cause"] for cause in causes))
    if decision == "wrong" and causes and all(cause["kind"] in ("definition", "convention") for cause in causes):
        return "DIFFERENT DEFINITION, not a gradient bug", "bold magenta", codes
    if decision == "wrong":
        return f"WRONG: {listed(wrong)}. {_share(data, found)}", "bold red", codes
    if decision == "undecided":
        return f"UNDECIDED. {_undecided(data, found)}", "bold yellow", []
    return _agree(data, found), "bold green", []


def _share(data: Json, found: list[Row]) -> str:
    said = [row for row in found if row.witness in data["wrong"]]
    bad = {(row.place, row.tensor) for row in said if not row.fine and row.verdict != "undecided"}
    everything = {(row.place, row.tensor) for row in said}
    verdicts = {row.verdict for row in said if not row.fine}
    if verdicts == {"low-precision"}:
        return "Right, but of lower precision than it says (--strict)."
    if verdicts == {"unstable"}:
        return f"The formula is right, the algorithm is numerically weak: {_of(bad, everything)}."
    return f"No rounding explains {_of(bad, everything)}."


def _of(some: set[tuple[str, str]], everything: set[tuple[str, str]]) -> str:
    kinds = {place for place, _ in everything}
    noun = "gradient" if kinds == {"gradient"} else "forward value" if kinds == {"forward"} else "value"
    plural = "s" if len(everything) != 1 else ""
    return f"{len(some)} of {len(everything)} {noun}{plural}"


def _undecided(data: Json, found: list[Row]) -> str:
    if data.get("distrust"):
        return f"The recording does not hold, so nobody is accused: {safe(data['distrust'])}"
    excess = data["audit"].get("directional_excess")
    if excess is not None and not float(excess) <= 1:
        return "The reference itself is in dispute, so nobody is accused."
    open_ = {(row.place, row.tensor) for row in found if row.verdict == "undecided"}
    return f"The evidence cannot tell for {_of(open_, {(row.place, row.tensor) for row in found})}."


def _agree(data: Json, found: list[Row]) -> str:
    everything = {(row.place, row.tensor) for row in found}
    if not everything:
        return "NOTHING TO JUDGE. No witness gave a gradient."
    rough = {(row.place, row.tensor) for row in found if row.verdict == "low-precision"}
    if rough:
        return f"NOBODY IS WRONG, but {_of(rough, everything)} have less precision than their dtype."
    explained = {("gradient", tensor) for cause in data["causes"] for tensor in cause["tensors"]}
    if explained:
        other = "a part of the gradient where the whole was asked, or the whole for a part; as that, right"
        return f"NOBODY IS WRONG. {_of(explained, everything)}: {other}."
    count = len(everything)
    noun = "gradients" if all(place == "gradient" for place, _ in everything) else "gradients and forward values"
    if data.get("by_vote_alone"):
        return f"NOBODY IS WRONG as far as a vote can tell: the witnesses agree on all {count} {noun}."
    return (
        f"NOBODY IS WRONG. All {count} {noun} are within rounding."
        if count > 1
        else "NOBODY IS WRONG. The gradient is within rounding."
    )


def where(data: Json, found: list[Row], case: Case | None) -> str:
    """Where the error starts; empty if nobody is wrong."""
    first = data.get("first_wrong")
    if not first:
        return ""
    node = node_called(case, first["node"])
    place = f"{safe(first['node'])}{f' ({safe(node.op)})' if node else ''}"
    place += f" at step {first['step']}" if first.get("step") is not None else ""
    outputs = set(node.outputs.values()) if node else set()
    forward = [
        r
        for r in found
        if r.place == "forward" and not r.fine and r.witness == first["witness"] and r.tensor in outputs
    ]
    if forward:
        worst = max(forward, key=lambda row: row.rank)
        return f"in the forward of {place}: {safe(worst.tensor)} differs by {number(worst.found.get('difference'))}"
    if node is not None and len(case.graph if case else []) > 1:
        return f"in the backward of {place}: nothing that flows into it is wrong, what it passes on is"
    return f"in the backward of {place}"


def why(data: Json, found: list[Row]) -> list[str]:
    """One sentence a cause or finding, then one for every wrong tensor that none of them explains."""
    said = []
    explained: set[tuple[str, str]] = set()
    told = definition.shown(data)
    for cause in [*data["causes"], *data["findings"]]:
        explained |= {(cause["witness"], tensor) for tensor in cause["tensors"]}
        if cause in told:
            continue
        name = cause.get("cause") or f"{cause['verdict']} ({cause['arithmetic']})"
        evidence = f": {cause['evidence']}" if cause.get("evidence") else ""
        said.append(f"{safe(cause['witness'])}, {listed(cause['tensors'])}: {safe(name)}{safe(evidence)}")
    left: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        if not row.fine and (row.witness, row.tensor) not in explained:
            text = row.found.get("why") or ""
            left.setdefault((text, "" if text else row.witness), []).append(row)
    for (text, _), alike in left.items():
        parties = listed(list(dict.fromkeys(row.witness for row in alike)))
        names = listed(list(dict.fromkeys(row.tensor for row in alike)))
        said.append(f"{parties}, {names}: {safe(text) or _size(alike)}")
    return said


def _size(alike: list[Row]) -> str:
    sizes = [float(row.found["excess"]) for row in alike if row.found.get("excess") is not None]
    if not sizes:
        return "the witnesses differ, and there is no reference"
    shown = list(dict.fromkeys(number(x) for x in (min(sizes), max(sizes))))
    outside, size = (sum(row.found.get(key) or 0 for row in alike) for key in ("outside", "size"))
    return (
        f"{' to '.join(shown)} times what rounding can explain, in {outside} of {size} elements; no known mistake fits"
    )


def looks_wrong(found: list[Row], case: Case | None) -> tuple[list[str], list[str], bool]:
    """Tensors whose exact gradient is zero, why they look wrong, and whether batchnorm is the reason."""
    zero = list(
        dict.fromkeys(
            r.tensor
            for r in found
            if r.verdict == "zero-noise" and r.about.get("exact_zero") and r.found.get("difference")
        )
    )
    if not zero:
        return [], [], False
    before = [tensor for tensor in zero if case is not None and is_bias_before_batchnorm(case, tensor)]
    what = "what you compare is noise divided by noise."
    if before:
        tensors = before
        text = f"Batchnorm subtracts the mean, so a bias before it has gradient 0: {what}"
    else:
        tensors = zero
        text = f"The exact gradient is 0: {what}"
    ladder = _ladder([row for row in found if row.tensor in tensors])
    return tensors, [f"{text} {ladder}".strip()], bool(before)


def _ladder(found: list[Row]) -> str:
    sizes = {(r.tensor, r.witness, r.dtype): float(r.found["difference"]) for r in found if r.found.get("difference")}
    for (tensor, witness, dtype), coarse in sizes.items():
        fine = sizes.get((tensor, witness, "float64"))
        if dtype == "float32" and fine:
            sizes_shown = f"float32 {number(coarse, 1)}, float64 {number(fine, 1)}"
            return f"{sizes_shown}: noise shrinks by about 2^29; a bug would not."
    return ""


def is_bias_before_batchnorm(case: Case, tensor: str) -> bool:
    """Whether a tensor is added right before batchnorm, which takes it off again."""
    biased = [node for node in case.graph if node.inputs.get("bias") == tensor and node.op == "linear"]
    if len(biased) != 1 or sum(tensor in node.inputs.values() for node in case.graph) != 1:
        return False
    output = biased[0].outputs.get("y")
    after = [node for node in case.graph if output in node.inputs.values()]
    return bool(after) and all(node.op == "batchnorm" for node in after)


def advice(data: Json, found: list[Row], case: Case | None) -> list[str]:
    """What to do next; what to record, where the evidence cannot tell."""
    said = []
    undecided = [row for row in found if row.verdict == "undecided"]
    blind = any("excess" not in row.found for row in undecided)
    if blind and data.get("opaque"):
        said.append(f"Write {listed(data['opaque'])} as ops that have kernels (gradjury case ops).")
    elif blind:
        said.append("Record the graph's inputs (value/NAME) and upstream gradients: then there is a reference.")
    coarse = [
        row for row in undecided if float(row.found.get("resolution") or 0) > 0 and row.found.get("excess") is not None
    ]
    if coarse:
        names = listed(list(dict.fromkeys(row.tensor for row in coarse)))
        said.append(f"Record {names} at float64 as well: rounding shrinks by 2^29, a mistake stays.")
    if any(row.about.get("exact_zero") for row in found) and looks_wrong(found, case)[2]:
        said.append("bias=False before batchnorm. A convolution's bias before batchnorm: the same.")
    return list(dict.fromkeys(text for text in said if text))


def vote(data: Json) -> list[str]:
    """How the witnesses group, tensors with the same grouping together; empty with one witness."""
    grouped: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    voices: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for tensor, about in data["tensors"].items():
        groups = tuple(tuple(group) for group in about["vote"])
        if sum(map(len, groups)) > 1:
            grouped.setdefault(groups, []).append(tensor)
            voices.setdefault(groups, about.get("voices", [len(group) for group in groups]))
    said = []
    for groups, tensors in grouped.items():
        one = [n == 1 < len(group) for group, n in zip(groups, voices[groups], strict=True)]
        texts = [
            " = ".join(map(safe, group)) + (" (one voice)" if o else "") for group, o in zip(groups, one, strict=True)
        ]
        about_what = "all" if len(grouped) == 1 else listed(tensors)
        said.append(f"{about_what}: {' | '.join(texts)}")
    return said


def checked(data: Json, found: list[Row]) -> str:
    """What was done so that the reference can be trusted, and the smallest mistake that would have shown."""
    excess = data["audit"].get("directional_excess")
    if excess is None:
        referee = (
            f"referee against itself: not possible ({safe(data['audit'].get('directional_why') or 'no reference')})"
        )
    else:
        referee = f"referee against itself: {'yes' if float(excess) <= 1 else 'NO'}"
    sharp = [
        r
        for r in found
        if r.verdict in FINE and not r.about.get("exact_zero") and r.found.get("resolution") is not None
    ]
    if not sharp:
        return referee + "."
    coarsest = max(sharp, key=lambda row: float(row.found["resolution"]))
    visible = number(coarsest.found["resolution"], 1)
    return f"{referee}. Smallest relative error visible in {safe(coarsest.tensor)}: {visible}."


def node_called(case: Case | None, name: str | None) -> Node | None:
    """The case's node of that name."""
    return next((node for node in case.graph if node.name == name), None) if case is not None else None
