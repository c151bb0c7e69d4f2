"""How a loader reads ahead: in threads or in worker processes, how many steps at a time, and how far."""

from __future__ import annotations

from dataclasses import replace

import torch

from holdfast.order.step_rows import LocatedAhead
from holdfast.sources.fetch.look_ahead import LookAhead
from holdfast.stream.config import StreamingConfig
from holdfast.stream.read_ahead import ReadAhead, ThreadReadAhead
from holdfast.stream.read_batches import memory_columns
from holdfast.stream.reading import StepRanges, StepReader
from holdfast.stream.worker_processes import ProcessReadAhead

__all__ = ["start_reading_ahead"]

# Samples read together, and positions computed together if samples are in memory: with few at a time NumPy calls
# dominate (bench/order.py), and many take memory.
READ_SAMPLES = 2048
LOCATE_SAMPLES = 8192
# Epochs that end on all ranks together are assigned one by one; closing waits for at most this many.
MAX_EPOCHS = 16


def start_reading_ahead(reader: StepReader, config: StreamingConfig, step: int, stop: int | None) -> ReadAhead:
    """Begin to read a rank's steps from ``step`` up to ``stop`` (None: no end)."""
    dataset, schedule, rank = reader.dataset, reader.schedule, reader.rank
    batch = schedule.batch_size(step, rank)
    each, together = (samples // batch for samples in (min(READ_SAMPLES, config.prefetch_buffer_size), LOCATE_SAMPLES))
    if not schedule.order.partition.continuous:
        steps = -(-schedule.order.epoch_length(0) // schedule.segment_at(step).global_batch_size)
        each, together = min(each, MAX_EPOCHS * steps), min(together, MAX_EPOCHS * steps)
    ranges = StepRanges(step, stop, max(1, each))
    sources = [named.source for named in dataset.sources]
    if any(source.is_remote for source in sources):
        reader = replace(reader, look_ahead=LookAhead(sources, schedule, rank, start=step, stop=stop, each=ranges.each))
    # The first range is a single step, which is located alone: a starting run does not wait for the others.
    stretch = ranges.each * max(1, together // ranges.each)
    located = LocatedAhead(schedule, rank, reader.last_batch, first=step + 1, stop=stop, each=stretch)
    reader = replace(reader, located=located)
    pin = config.pin_memory and torch.cuda.is_available()
    samples = ranges.each * batch
    ahead = max(2, -(-config.prefetch_buffer_size // samples))
    if config.num_workers:
        return ProcessReadAhead(
            reader,
            ranges,
            workers=config.num_workers,
            ahead=max(ahead, 2 * config.num_workers),
            pin_memory=pin,
            context=config.multiprocessing_context,
        )
    in_memory = reader.collate is None and memory_columns(dataset) is not None
    at_once = max(1, LOCATE_SAMPLES // samples) if in_memory else 1
    return ThreadReadAhead(
        reader, ranges, threads=config.prefetch_threads, ahead=ahead, at_once=at_once, pin_memory=pin
    )
