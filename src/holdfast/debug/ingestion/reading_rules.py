"""The rules of reading: where one run ends and another begins, what ends a job, and which lines of a text are rows.

Named in a set of thresholds as ``reading.restarts``, ``reading.ending``, ``reading.text``, ``reading.lists`` and
``reading.table``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["EndingRule", "ListRule", "RestartRule", "RunningMeanRule", "StepRule", "TableRule", "TextRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """What a counter that goes back within one run means."""

    late_share: float = 0.02
    """A row may be late by this fraction of the run and still be put in order: loggers flush within seconds."""
    late_strides: float = 8.0
    """Or by this many logging intervals."""
    disorder_share: float = 0.1
    """Never by more than this fraction of the run: that is a restart, however coarse the log."""
    resumes_share: float = 0.02
    """Resumes are rare: more drops than this fraction of the rows (but at least three) are something else."""
    near_start_share: float = 0.05
    """The fraction of the run's span within which a pass over the data may begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMeanRule:
    """When a series is averaged or summed within each epoch."""

    minimum_epochs: int = 8
    """Minimum number of epochs for their ends to be a series."""
    minimum_sum_epochs: int = 2
    """The same for a sum: it restarts near zero in each epoch, which no loss does by chance."""
    points_per_epoch: int = 8
    """Minimum number of points per epoch that show how they settle."""
    settling: float = 3.0
    """Minimum ratio of the changes at the start of an epoch to those in its last third: a mean of n values changes by
    1/n of what a single one does, while batch losses change equally throughout."""
    reset: float = 0.2
    """A sum begins below this fraction of the end of the epoch before it …"""
    agreeing_share: float = 0.8
    """… in this fraction of the epochs."""
    rising_share: float = 0.9
    """Minimum fraction of its points that increase within an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """When a counter that goes back begins another run."""

    near_start_share: float = 0.02
    """The fraction of a segment within which a counter is back at its start: runs log their first step or their
    tenth."""
    level_rows: int = 5
    """Number of rows whose median is a loss level: a single row depends on its batch."""
    minimum_fall_noises: float = 4.0
    """A loss has visibly moved if it moved by this many times the median distance of neighbouring rows …"""
    minimum_fall_share: float = 0.05
    """… and by this fraction of its first level."""
    alike_share: float = 0.25
    """Segments whose lengths differ by less than this fraction may be passes over the same data."""
    minimum_rows_per_run: float = 2.0
    """If the runs found are shorter than this on average, the counter does not count what it seems to."""
    minimum_rounds: int = 8
    """Minimum number of segments of equal length for them to be rounds of one run …"""
    goes_on_share: float = 0.8
    """… if this fraction of them begin closer to the end of the previous one than to the start of the first."""
    settings_again: int = 3
    """Minimum number of settings printed again for another run to have started."""
    clock_jump_seconds: float = 3600.0
    """A pause between two rows that no evaluation or checkpoint explains."""
    opening_characters: int = 8
    """Minimum number of letters of the first line of a text for its repetition to mean that the program was
    restarted."""
    alike_launches: float = 0.5
    """Maximum fraction of the segments between such lines that may be equally long: epochs are, runs seldom."""
    steps: StepRule = field(default_factory=StepRule)
    """What going back means if it begins no other run."""
    means: RunningMeanRule = field(default_factory=RunningMeanRule)
    """When an epoch is read only at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingRule:
    """When an error quoted in a text ended its job."""

    unplaced_rows: int = 3
    """Number of rows without a step, or lines of bare numbers, after an error that together show that training
    continues."""
    lines_after: int = 60
    """Maximum number of lines after the last sign of a crash in a text without training, including those of a long
    traceback …"""
    share_after: float = 0.1
    """… or this fraction of the text: a program that prints more continued."""
    crashed_launches: int = 3
    """Minimum number of starts that ended in an error, in one text without training, for them to be counted."""
    numbers_share: float = 0.4
    """Minimum fraction of a line's cells that are numbers in a row of a table: a traceback frame has one in six."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """Which lines of free text are rows."""

    covered: float = 0.5
    """Minimum fraction of a line without a counter that must be named numbers: prose contains some numbers."""
    covered_beside_counter: float = 0.12
    """The same for a line with a counter: little is enough, but a paragraph is not a row."""
    covered_lost: float = 0.25
    """The same if a number is NaN: "WARNING: Loss is NaN, skipping batch" is worth reading."""
    read_share: float = 0.5
    """A format that reads a smaller fraction of the lines that look like training is replaced by one that reads
    more."""
    announcement_characters: int = 16
    """Maximum number of characters besides the counter on a line that only announces a position."""
    section_characters: int = 40
    """Maximum number of characters of a line that only names the split of the lines after it."""
    comma_pairs: int = 3
    """Minimum number of alternating names and numbers between commas for a line to consist of such pairs: two may be a
    list."""
    shape_rows: int = 6
    """Minimum number of rows with a counter and the same unknown names for them to be series, if the text has no
    others."""
    points: int = 2
    """Minimum number of points of a named number that is not a loss: a single one in a long log is prose."""
    sure_share: float = 0.5
    """The fraction of these minimums that is enough if a number is NaN ("nan" is half as long as "0.5217") or the
    counter has a total, as on a progress bar, which is long in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRule:
    """Which lists of numbers in a text are series, and which columns without a known name."""

    numbers: int = 3
    """Minimum number of values of a list: two may be a range or a shape."""
    numbers_in_row: int = 8
    """Minimum number of values of a row with a name before it: fewer are a row of a table."""
    character_share: float = 0.5
    """Minimum fraction of the text that must be in such lists; otherwise they summarise other lines."""
    before_name: int = 40
    """Maximum number of characters before a name: a time, a bullet."""
    unnamed_points: int = 6
    """Minimum number of points of a column without a known name."""
    unnamed_runs: int = 64
    """Maximum number of such columns in a table; more are data, not runs side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """Which lines are a table, and what its columns may be: with a header, drawn with bars, or bare numbers."""

    pair_share: float = 0.34
    """Maximum fraction of a header's names that may contain a colon and a number: more are a line of a log."""
    fitting_share: float = 0.6
    """Minimum fraction of the rows that must have as many cells as the header."""
    preamble_lines: int = 3
    """Maximum number of lines of settings before the header of a file that is named like a table."""
    wide: int = 5
    """With at least this many columns a row does not match its header by chance …"""
    fitting_share_wide: float = 0.4
    """… and every other row may be something else: some programs write two tables into one file."""
    bordered_rows: int = 4
    """Minimum number of rows between bars."""
    known_names: int = 2
    """Minimum number of known metrics in a printed header without a counter, whose rows are then counted …"""
    known_share: float = 0.5
    """… and their minimum fraction of the names: a sentence may contain two."""
    bare_rows: int = 6
    """Minimum number of rows of numbers without a name."""
    bare_rows_named: int = 3
    """The same if the file's name says what they are."""
    matrix_width: int = 50
    """Minimum number of values per row for the rows of a file whose name says what they are, all of equal length, to be
    a series split into rows, or runs side by side: read in file order, and not judged."""
    bare_share: float = 0.95
    """Minimum fraction of the lines that must be rows of numbers."""
    width_share: float = 0.6
    """Minimum fraction of the rows that must have the most common number of values."""
    bare_columns: int = 16
    """Maximum number of values per row; more are data, not a log."""
    unnamed_columns: int = 2
    """Maximum number of columns of which the first may be the loss: of more, any may be."""
    unnamed_beside_counter: int = 4
    """The same after a counter: programs print the epoch, then the loss, then what is derived from it."""
    unknown_columns: int = 8
    """Maximum number of values per row, including the counter, in a file whose name says nothing: more are data."""
    counting_share: float = 0.9
    """Minimum fraction of the rows that must follow the one before for a column to be a counter."""
    sum_tolerance: float = 0.01
    """Maximum relative distance of a total from the sum of the other columns: logs round."""
    fallen_share: float = 0.9
    """Minimum fraction of the last tenth of an unnamed series that must be below the median of the first for it to have
    fallen: predictions or measurements end a little lower by chance."""
