"""Messages with which programs, shells, schedulers and launchers die, grouped by what they say happened.

A line of ``ALONE`` counts wherever it is printed, if nothing follows it. ``LAST_WORDS`` also occur in the
middle of healthy runs: they count only as the last line of a text.
"""

from __future__ import annotations

import re

__all__ = [
    "ALONE",
    "COMPLETED",
    "HARMLESS",
    "LAST_WORDS",
    "NEVER_HARMLESS",
    "OF_ONE_REQUEST",
    "STOPPED",
    "kind_of",
    "may_tell",
    "serves",
    "trains",
]

_HINTS = (
    "rror", "aceback", "emory", "xit", "illed", "illing", "KILL", 'File "', "bort", "nccl", "NCCL", "imed out",
    "ollective", "dumped", "CANCELLED", "DUE TO", "SIG", "signal", "Arguments", "xception", "nterrupt", "CUDA",
    "CUBLAS", "CUDNN", "OOM", "bad_alloc", "fault", "FATAL", "atal", "CRITICAL", "ERROR", "FAIL", "failed", "crashed",
    "RAINING", "iverged", "DIVERGED", "panic", "not found", "annot ", "open file", "o such file", "o module",
    "denied", "srun", "TERM_", "walltime", "wallclock", "erminat", "ERMINAT", "MPI_", "EXIT", "halted", "Hangup",
    "Illegal", "NaN", "nan ", "inf ", "recognized", "ncaught", "quota", "o space", "ssertion", "eap space", ": F ",
    "F0", "F1", "State: ", "ailure", "^C", " 0 OK", " 0 ok", " 0 succe", "ollaps", "OLLAPS", "ollass", "OLLASS",
    "olaps", "OLAPS", "ivergen", "DIVERGEN", "xplosion", "EXPLOSION", "ffondr", "FFONDR",
    "坍塌", "崩溃", "发散", "崩壊", "붕괴",
)  # fmt: skip
_ADVICE = r"^(?!.*\b(?:[Ii]f|avoid|prevent|may|might|could|should|not a failure)\b)"
_NOT_OF_DATA = (
    r"^(?!.*\b(?i:no|not|0|without|if|check\w*|data|dataset|csv|columns?|rows?|features?|replac\w*|fill\w*|drop\w*"
    r"|imput\w*|remov\w*)\b)"
)
_COLLAPSE = (
    r"\b(?i:collapse|collasso|colapso|effondrement|kollaps|divergence|divergenza|divergencia|explosion)"
    r"(?: (?i:of|del|della|du|de|des) .{1,30}?)?"
)
# Not what programs look for optionally and do without.
_SHELL = r"^(?!.*\b(?:git|nvidia-smi|nvcc|lspci|lscpu|hostname)\b)"
_SHELL += r"\S{0,200}(?:sh|slurm_script|\.sbatch|\.slurm|\.job|\.pbs)(?:: line \d+|: \d+)?: "
_SAYS = r"^.{0,100}?(?:^|\b(?:ERROR|CRITICAL|FATAL)\b)\W{0,6}"  # at the beginning, or after the head of a logger's line

ALONE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "out_of_memory",
            r"\bOutOfMemoryError\b|CUDA out of memory\. Tried to allocate|RESOURCE_EXHAUSTED: (?:Out of memory|OOM)"
            r"|OOM when allocating tensor|std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)"
            r"|oom[-_ ]kill(?:er| event|ed)|OOM[ -]?[Kk]ill|Out [Oo]f [Mm]emory: Kill(?:ed)?"
            r"|CUDA [Ee]rror: out of memory"
            r"|Unable to allocate [\d.]+ [KMGT]iB for an array|Java heap space|task \d+: Out Of Memory"
            rf"|{_ADVICE}.*(?:[Cc]uda\w*|CUDA|GPU|FAIL|Success)\b.{{0,80}}\b[Oo]ut of memory\b"
            rf"|{_ADVICE}.*\b[Oo]ut of memory (?:error )?on (?:GPU|device)|allocate more memory than is available",
        ),
        (
            "collective_timeout",
            r"Watchdog caught collective operation timeout|NCCL (?:timeout|watchdog timeout)|Timed out waiting \d+ms"
            r"|collective operation timeout|ncclSystemError|ncclInternalError|ncclRemoteError|NCCL error"
            r"|ProcessGroupNCCL.*abort",
        ),
        (
            "killed",
            r"^\s*Killed\s*$|^forrtl: (?:severe|error) \(\d+\)"
            r"|\bKilled\s+python|: line \d+: +\d+ (?:Killed|Aborted|Bus error|Illegal instruction)\b"
            r"|[Ss]egmentation fault|core dumped|\bBus error\b|[Bb]us error encountered|^\s*Aborted\b"
            r"|^\s*Illegal instruction|^\[\d+\]\s*[+-]?\s*\d+ +(?:killed|abort|bus error)\b"
            r"|slurmstepd: error: .*\bkilled|DUE TO (?:TIME LIMIT|NODE FAILURE|PREEMPTION)"
            r"|^srun: error: .*: (?:Killed|Aborted|Bus error)"
            r"|\bState: (?:FAILED|OUT_OF_ME|TIMEOUT|NODE_FAIL)|PBS: job killed"
            r"|\bTERM_(?:MEM|RUN|CPU|SWAP)LIMIT\b|exceeded (?:hard )?(?:wallclock|walltime)"
            r"|[Aa]bnormal termination \(signal|exited on signal \d+|terminated by signal (?:9|11|6|7|4)\b"
            r"|BAD TERMINATION OF ONE OF YOUR|MPI_ABORT was invoked|\] Killing subprocess \d+|closing signal SIGTERM"
            r"|terminate called (?:after throwing|without an active)"
            r"|Received (?:signal|SIG)\S* ?1?5?:? ?(?:SIGTERM|death)"
            r"|Signals\.SIG(?:KILL|TERM|ABRT|SEGV)|\bsignal (?:9|11|6|15) \(SIG\w+\)|Fatal Python error",
        ),
        (
            "interrupted",
            r"slurmstepd: error: .*CANCELLED AT|^\s*(?:Terminated|Hangup)\s*$|: line \d+: +\d+ Terminated\b|^\s*\^C\s*$"
            r"|\(failed 255\)\. Press|failed with code 255\b",
        ),
        (
            "exit_code",
            r"exits? with return code = -?[1-9]\d*|non-zero exit (?:code|status)|[Ee]xit\w* with (?:a )?non-zero"
            r"|returned non-zero exit status -?[1-9]\d*|^make(?:\[\d+\])?: \*\*\* .*\bError [1-9]\d*"
            r"|[Ee]xit(?:ed)?(?: with)?(?: exit| return| status)? (?:code|status)[ :=]+-?[1-9]\d*\b"
            r"|\bEXIT CODE: [1-9]|\bExitCode:? [1-9]"
            r"|exitcode\s*:\s*-?[1-9]\d*|ChildFailedError|\(failed [1-9]\d*\)\. Press|[Pp]rogram failed with code [1-9]"
            r"|^\S+: error: (?:argument |unrecognized |the following arguments|ambiguous option|too few|invalid )",
        ),
        (  # Printed by a program that catches any error of its training, and ends.
            "logged_error",
            r"^\W{0,6}(?:ERROR|Error|FATAL|Exception)\b.{0,20}\b(?:during|while|in) (?:training|fit\w*)\b\s*:"
            rf"|{_SAYS}(?:[Tt]raining|TRAINING) (?:has |HAS )?(?:failed|FAILED|crashed|CRASHED|aborted|ABORTED)\b"
            r"\s*(?:[:!.]|$|with\b|after\b|due\b|because\b|at\b)"
            rf"|{_SAYS}(?:[Tt]raining|[Mm]odel|[Ll]oss|TRAINING|MODEL|LOSS) (?:has |HAS )?(?:diverged|DIVERGED)"
            r"\s*(?:[:!.,(]|$|at\b)"
            # … or finds that it collapsed: "COLLAPSE DETECTED", in whatever language it prints.
            rf"|{_NOT_OF_DATA}.{{0,60}}{_COLLAPSE} (?i:(?:has |was |has been )?(?:detected|rilevat[oa]|detectad[oa]"
            r"|détectée?|detectee?|erkannt|encountered))\b(?!\W{0,3}(?:False|None|0|at 0|in 0))"
            rf"|{_SAYS}(?i:(?:model|training|representations?|embeddings?|generator|policy) (?:has |have )?collapsed)"
            r"\s*(?:[:!.,(]|$|at\b)"
            r"|(?:检测到|出现|发生)(?:了)?.{0,8}(?:坍塌|崩溃|发散)|(?:坍塌|崩壊|붕괴).{0,4}(?:检测|検出|감지)"
            # … or judges its own run: "FAIL: Model cannot overfit".
            r"|^\W{0,6}FAIL(?:ED|URE)?\s?[:!-].{0,80}"
            r"\b(?:[Mm]odel|[Tt]rain\w*|[Oo]verfit\w*|[Cc]onverge\w*|[Ll]earn\w*)\b"
            # … or counts what it trained: "Training complete: 0 OK | 1 failed", which a window may fold.
            r"|\b[Tt]raining (?:complete|completed|finished|done)\W{1,4}0 (?:OK|ok|succeeded|successful)"
            r"\s?[|,;/]\s?(?:[1-9]\d{0,6}(?: failed\b|\s?$)|$)"
            r"|^(?:.{0,100}\W)?(?:[Aa]ll|ALL) [1-9]\d{0,6} (?:training )?"
            r"(?:models|runs|jobs|trials|trainings|folds) (?:have )?(?:failed|FAILED)\b"
            r"|^\W{0,6}Aborting (?:the )?training\b|^wandb: ERROR Run \S+ errored|Invalid loss, terminating training"
            r"|No space left on device|[Dd]isk quota exceeded"
            # … or notices that it no longer computes anything.
            rf"|{_NOT_OF_DATA}.{{0,60}}\b(?:NaNs?|nan|NAN|Infs?|inf)\b(?: or inf| loss| gradients?| values?)?"
            r" (?:detected|encountered)\b(?!\W{0,3}(?:False|0))"
            r"|\b[Ll]oss (?:is|became|went to) (?i:nan|inf)\b.{0,20}"
            r"\b(?:[Ss]topping|[Tt]erminating|[Aa]borting|[Ee]xiting)",
        ),
        (  # What other languages and libraries print instead of a Python traceback.
            "traceback",
            r"^thread '[^']{1,60}' panicked at |^panic: |^Exception in thread \"|^stack traceback:\s*$"
            r"|^ERROR: LoadError: |^Execution halted\s*$|^Uncaught \w*(?:Error|Exception)|\[LightGBM\] \[Fatal\]"
            r"|^Error executing job with overrides|^Error Message Summary:\s*$"
            r"|^F\d{4} \d\d:\d\d:\d\d[^\]]{0,80}\] |: F (?:tensorflow|external)/|^\*\*\* Check failure stack trace",
        ),
        (
            "device_error",
            r"CUDA error: (?!out of memory)|device-side assert triggered|CUBLAS_STATUS_\w+_FAILED|CUDNN_STATUS_\w+"
            r"|\bAssertion [`'].{1,200}['`] failed",
        ),
        (  # What a shell or launcher says about a program that it could not start.
            "not_started",
            rf"{_SHELL}.{{0,300}}(?:not found|No such file or directory|[Pp]ermission denied|cannot execute"
            r"|syntax error|unexpected EOF|bad interpreter|unbound variable)|^zsh: command not found"
            # Windows names the whole path, and PowerShell the command before it: "python : C:\\Python\\python.exe: …".
            r"|^(?:[\w.-]{1,40} : )?(?:\S*|[A-Za-z]:\\[^:]{1,200})python[\d.]*w?(?:\.exe)?: "
            r"(?:can't open file|No module named|error while loading|can't find '__main__')"
            r"|is not recognized as (?:an internal|the name of)|^Python was not found"
            r"|^(?:nohup|env|sudo|timeout|mpirun|torchrun): .{0,200}(?:No such file|not found|failed to run)"
            r"|^(?:srun|sbatch|salloc): (?:error|fatal): ",
        ),
    )
)  # fmt: skip
"""Each kind of crash with its pattern. Numbers and fixed words keep prose out."""

# A logger's line: "[2022-04-30 13:26:01][hydra.utils][ERROR] - …", "12:00:01 ERROR app: …", "ERROR:root:…".
LAST_WORDS = re.compile(
    r"^.{0,40}?\d\d:\d\d.{0,60}?[\s\[|:-](?:ERROR|CRITICAL|FATAL)[\s\]|:-]|^(?:ERROR|CRITICAL|FATAL):[\w.]{1,40}:"
    r"|^(?:[Ee]rror|[Ff]atal|FATAL): (?![-+.\d])\S"  # The last lines of compiled programs and command-line tools.
    r"|^\W{0,4}(?:(?:[Aa]n|[Uu]nexpected|[Uu]nhandled|[Ff]atal) )*(?:[Ee]rror|[Ee]xception)"
    r"(?: occurr?ed\b.{0,60}?)?: (?![-+.\d])\S"
)
"""An error that ended the program only if nothing was printed after it."""
COMPLETED = re.compile(
    r"\b(?:[Tt]raining|TRAINING|[Tt]rain|[Aa]ll epochs)\b.{0,30}\b(?:[Cc]ompleted?|COMPLETED?|[Ff]inished"
    r"|FINISHED|[Dd]one|DONE|over)\b"
)
"""Printed once training is over: an error after that does not concern the training."""
STOPPED = re.compile(r"KeyboardInterrupt|SystemExit: 0\b|^\s*\^C")
HARMLESS = re.compile(
    r"[Ww]arning|WARN(?!ING: .*(?:timeout|out of memory))|\bignor(?:e|ed|ing)\b|[Ss]kipp(?:ed|ing)|retry"
    r"|\bcaught (?:an? )?(?:error|exception)"
    r"|\b0 errors?\b|[Ee]rror(?: rate)?\s*[:=]\s*[-+]?\d|exit code 0|^\s*#"
)
"""Marks lines after which the program continues: a warning that names an error, a handler that caught one."""
NEVER_HARMLESS = frozenset(("exit_code", "out_of_memory", "killed"))
"""Kinds that are never harmless, whatever the line says."""


OF_ONE_REQUEST = frozenset(("traceback", "logged_error", "interrupted", "exit_code"))
"""Kinds that end one request or one job of a service, not the service itself."""
# How web servers and schedulers announce themselves and what they answer.
_SERVES = re.compile(
    r"\bUvicorn running on\b|Application startup complete|Running on (?:all addresses|https?://)|Serving Flask app"
    r"|Starting development server at|Starting gunicorn|\[INFO\] Listening at: |Started server process \["
    r"|\b[Ss]erver (?:is )?(?:up and running|running|listening|started)\b|\b[Ss]tart(?:ing|ed) .{1,40}\b[Ss]erver on\b"
    r"|\bapscheduler\.\w|\bScheduler started\b|\bcelery@\S+ (?:ready|v\d)|\b(?:Now )?[Ll]istening on (?:port|https?:)"
    r"|\"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH) /\S{0,300} HTTP/\d"
)
_TRAINS = re.compile(
    r"\b(?:[Ee]pochs?|EPOCHS?)\b|\b(?:[Tt]rain(?:ing|er)?|[Ff]ine-?tun(?:e|ing)|[Pp]re-?train(?:ing)?)\b"
    r"|\btorchrun\b|\bdeepspeed\b|train\w*\.py\b"
)


def serves(line: str) -> bool:
    """Return whether a line was written by a web server or a job scheduler."""
    return bool(_SERVES.search(line))


def trains(line: str) -> bool:
    """Return whether a line mentions training."""
    return bool(_TRAINS.search(line))


def may_tell(line: str) -> bool:
    """Return whether a line may be part of a crash: a cheap check that most lines fail."""
    return any(hint in line for hint in _HINTS)  # Faster than one pattern for all of them.


def kind_of(line: str) -> str | None:
    """Return the kind of crash that a line reports, or None."""
    return next((kind for kind, pattern in ALONE if pattern.search(line)), None)
