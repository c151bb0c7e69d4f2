"""Counts what a job left behind: raw keys, raw files. Uses none of the package's code.

What must hold: one output per chunk, with the samples of that chunk, each sample once over all; one record per chunk
in the job's folder, whatever the generation; every yes that a worker ever heard is that record; the list of results
names every chunk; and the last store's own records are among them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from tests.faults.coordinate_servers import RawKeys

PART = re.compile(r"part-(\d{8})-([0-9a-f]{8})-g(\d+)-t(\d+)\.json")
TOKENS_PER_GENERATION = 1_000_000


def ledger_records(folder: Path) -> dict[int, set[str]]:
    """Return the distinct records of each chunk in the job's folder, as text."""
    found: dict[int, set[str]] = {}
    for generation in folder.glob("generation-*"):
        for file in [*generation.glob("chunk-*.json"), *generation.glob("journal-*.jsonl")]:
            for line in file.read_text().splitlines():
                try:
                    chunk = json.loads(line)[0]
                except ValueError:
                    assert file.name.startswith("journal-"), f"a torn record: {file}"
                    continue
                found.setdefault(chunk, set()).add(line)
    return found


def problems(folder: Path, keys: RawKeys, *, chunks: int, chunk_size: int, may_forget: bool) -> list[str]:
    """Return everything that is not as it must be.

    Args:
        folder: where the job and its outputs are.
        keys: the store's raw keys.
        chunks: how many chunks the job has.
        chunk_size: positions per chunk.
        may_forget: whether the store was emptied after the last worker had finished: it then knows nothing.
    """
    wrong: list[str] = []
    parts: dict[int, list[Path]] = {}
    values: Counter[int] = Counter()
    for file in (folder / "out").glob("part-*"):
        match = PART.fullmatch(file.name)
        if match is None:
            wrong.append(f"an output with a strange name: {file.name}")
            continue
        parts.setdefault(int(match[1]), []).append(file)
        content = json.loads(file.read_text())
        values.update(content["values"])
        first = int(match[1]) * chunk_size
        if content["positions"] != list(range(first, first + chunk_size)):
            wrong.append(f"{file.name} holds other positions: {content['positions']}")
    if sorted(parts) != list(range(chunks)):
        wrong.append(f"outputs of {len(parts)} chunks instead of {chunks}")
    wrong += [f"chunk {chunk} has {len(files)} outputs" for chunk, files in parts.items() if len(files) != 1]
    if values != Counter(range(chunks * chunk_size)):
        wrong.append("not every sample is in the outputs exactly once")
    return wrong + _problems_of_records(folder, keys, parts, chunks, may_forget=may_forget)


def _problems_of_records(
    folder: Path, keys: RawKeys, parts: dict[int, list[Path]], chunks: int, *, may_forget: bool
) -> list[str]:
    wrong: list[str] = []
    records = ledger_records(folder / "job")
    if sorted(records) != list(range(chunks)):
        wrong.append(f"the folder has {len(records)} chunks instead of {chunks}")
    wrong += [f"chunk {chunk} has {len(lines)} records" for chunk, lines in records.items() if len(lines) != 1]
    final = {chunk: json.loads(next(iter(lines))) for chunk, lines in records.items()}
    for chunk, (_, kind, _, _, _, file) in final.items():
        if kind != "done" or [path.name for path in parts.get(chunk, [])] != [file]:
            wrong.append(f"chunk {chunk} is recorded with the output {file!r}")
    heard: Counter[int] = Counter()
    for account in folder.glob("account-*.jsonl"):
        for line in account.read_text().splitlines():
            chunk, token, owner = json.loads(line)
            heard[chunk] += 1
            if chunk in final and final[chunk][2:4] != [owner, token]:
                wrong.append(f"a worker heard yes for chunk {chunk}, token {token}; the record is {final[chunk]}")
    wrong += [f"{count} workers heard yes for chunk {chunk}" for chunk, count in heard.items() if count > 1]
    for listing in folder.glob("results-*.json"):
        if json.loads(listing.read_text()) != [[chunk, *final[chunk][3:]] for chunk in sorted(final)]:
            wrong.append(f"{listing.name} does not list every result")
    return wrong + _problems_of_the_store(keys, final, may_forget=may_forget)


def _problems_of_the_store(keys: RawKeys, final: dict[int, list[object]], *, may_forget: bool) -> list[str]:
    job = json.loads(keys.get("holdfast/lease/job/job") or b"null")
    if job is None:
        return [] if may_forget else ["the store does not know the job"]
    wrong: list[str] = []
    for chunk, entry in final.items():
        raw = keys.get(f"holdfast/lease/job/{job['generation']}/chunk/{chunk}")
        token = entry[3]
        assert isinstance(token, int)
        ours = (token - 1) // TOKENS_PER_GENERATION + 1 == job["generation"]
        if ours != (raw is not None) or (raw is not None and json.loads(raw) != entry[1:]):
            wrong.append(f"chunk {chunk} is {raw!r} in the store and {entry} in the folder")
    return wrong
