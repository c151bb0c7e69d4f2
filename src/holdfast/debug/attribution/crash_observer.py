"""Why a program died, judged by what it printed: the kind of its last error and the words of the message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.debug.attribution.observing import Scene, Seen

__all__ = ["CrashObserver"]

_BY_KIND: Mapping[str, str] = {
    "out_of_memory": "memory_ran_out",
    "killed": "was_killed",
    "collective_timeout": "rank_missing",
    "device_error": "device_failed",
}
"""The cause implied by the kind of crash alone."""
# Most specific patterns first: the first match is used.
_BY_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("disk_ran_out", r"No space left on device|[Dd]isk quota exceeded|FilesystemQuotaExceeded"),
        (
            "module_missing",
            r"ModuleNotFoundError|ImportError|No module named|cannot import name|undefined symbol"
            r"|cannot open shared object|version `\w+' not found|DLL load failed",
        ),
        (
            "checkpoint_differs",
            r"state_dict|[Mm]issing key\(s\)|[Uu]nexpected key\(s\)|checkpoint.*(?:mismatch|differ)",
        ),
        (
            "file_missing",
            r"FileNotFoundError|No such file or directory|NotADirectoryError|IsADirectoryError|PermissionError"
            r"|[Pp]ermission denied|\.\w{2,5}['\"]? does(?: not|n't) exist"
            r"|unable to (?:open|lock|create) file|FileExistsError",
        ),
        (
            "network_failed",
            r"ConnectionError|ConnectionRe\w+Error|HTTPError|URLError|gaierror|Max retries exceeded|CommError"
            r"|Name or service not known|Network is unreachable"
            r"|SSLError|ReadTimeout|OfflineModeIsEnabled|BrokenPipeError",
        ),
        (
            "arguments_wrong",
            r"error: (?:argument |unrecognized |the following arguments|ambiguous option|too few|invalid )"
            r"|Config\w*Error|MissingMandatoryValue|InterpolationKeyError|ValidationError|Key '\w*' is not in struct",
        ),
        (
            "shapes_differ",
            r"shapes? (?:mismatch|cannot be|'?\[?.{0,40}is invalid)|size mismatch|must match the (?:size|existing)"
            r"|Sizes of tensors must match|[Ii]ncompatible shapes|could not (?:be )?broadcast|target size"
            r"|too many indices|[Dd]imension(?:s| out| mismatch|ality)|expected .{0,60} channels|mat1 and mat2"
            r"|same (?:number of dimensions|shape|size)|inhomogeneous shape|batch_size .{0,40}to match"
            r"|[Ss]hapes? .{0,80}(?:do(?:es)? not match|not aligned|incompatible)|incompatible with the layer"
            r"|[Ee]xpected (?:shape|axis|(?:min_)?ndim)\b|Expected \d-?[dD]|broadcast shape",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashObserver:
    """Classifies what a program printed when it died."""

    def observe(self, scene: Scene) -> Seen:
        """Return the reason for the crash, if the story is one and the log gives a reason."""
        events = [event for event in scene.context.events if event.get("type") == "crash"]
        if not events or not scene.has_name("crash"):
            return {}
        seen: Seen = {_BY_KIND[kind]: 1.0 for event in events if (kind := str(event.get("kind"))) in _BY_KIND}
        if seen:
            return seen
        for name, pattern in _BY_WORDS:
            if any(pattern.search(text) for text in _messages(events)):
                return {name: 1.0}
        raised = any(event.get("kind") == "traceback" for event in events)
        return {"error_raised": float(raised)}


def _messages(events: list[Mapping[str, Any]]) -> Iterator[str]:
    for event in events:
        yield str(event.get("message", ""))
        yield from (str(line) for line in event.get("lines", ()) if not str(line).lstrip().startswith("File "))
