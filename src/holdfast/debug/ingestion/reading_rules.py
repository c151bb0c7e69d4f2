"""What reading decides: where a run ends and another begins, what ends a job, and which lines of a text are rows.

Reachable in a set of thresholds as ``reading.restarts``, ``reading.ending``, ``reading.text``, ``reading.lists`` and
``reading.table``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["EndingRule", "ListRule", "RestartRule", "RunningMeanRule", "StepRule", "TableRule", "TextRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """What a counter that goes back within one run means."""

    late_share: float = 0.02
    """A row may be late by this share of the run and still be put in its place: loggers flush within seconds."""
    late_strides: float = 8.0
    """Or by this many logging intervals."""
    disorder_share: float = 0.1
    """But never by more than this share of the run: that is a restart, however coarse the log."""
    resumes_share: float = 0.02
    """Resumes are rare: more drops than this share of the rows (but at least three) are something else."""
    near_start_share: float = 0.05
    """The share of the run's span within which a pass over the data may begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMeanRule:
    """When a series is averaged or added up within each epoch."""

    minimum_epochs: int = 8
    """Epochs from which their ends are a series of their own."""
    minimum_sum_epochs: int = 2
    """The same for what is added up: it begins near nothing again with each, which no loss does by chance."""
    points_per_epoch: int = 8
    """Points per epoch from which it shows how they settle."""
    settling: float = 3.0
    """How many times smaller the changes in the last third of an epoch are than at its beginning: a mean of n values
    changes by one n-th of what a single one does, and batch losses change alike throughout."""
    reset: float = 0.2
    """A sum begins below this share of what the epoch before it ended at …"""
    agreeing_share: float = 0.8
    """… in this share of the epochs."""
    rising_share: float = 0.9
    """The share of its points that go up within an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """When a counter that goes back begins another run."""

    near_start_share: float = 0.02
    """The share of a stretch within which a counter is back at its start: runs log their first step or their tenth."""
    level_rows: int = 5
    """Rows whose median is a loss level: one row is a batch's luck."""
    minimum_fall_noises: float = 4.0
    """A loss has visibly moved when it moved by this many times the median distance of neighbouring rows …"""
    minimum_fall_share: float = 0.05
    """… and by this share of its first level."""
    alike_share: float = 0.25
    """Stretches whose lengths differ by less than this share may be passes over the same data."""
    minimum_rows_per_run: float = 2.0
    """Where the runs found are shorter than this on average, the counter does not count what it seems to."""
    minimum_rounds: int = 8
    """Stretches of one length from which they may be rounds of one run …"""
    goes_on_share: float = 0.8
    """… where this share of them begins nearer to the end of the one before than to the beginning of the first."""
    settings_again: int = 3
    """Settings that must be printed again before it counts as the start of another run."""
    clock_jump_seconds: float = 3600.0
    """A pause between two rows that no evaluation or checkpoint explains."""
    opening_characters: int = 8
    """Letters from which the first line of a text, printed again, may say that its program was started again."""
    alike_launches: float = 0.5
    """The share of the stretches between such lines that may be equally long: those of an epoch are, runs seldom."""
    steps: StepRule = field(default_factory=StepRule)
    """What going back means where it begins no other run."""
    means: RunningMeanRule = field(default_factory=RunningMeanRule)
    """When an epoch is read at its end only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingRule:
    """When an error that a text quotes was the end of its job."""

    unplaced_rows: int = 3
    """Rows without a step after an error, or lines of bare numbers, that say together that training continues."""
    lines_after: int = 60
    """Lines after the last sign of a crash in a text without training, a long traceback's own ones included …"""
    share_after: float = 0.1
    """… or this share of the text: a program that prints more than that continued."""
    crashed_launches: int = 3
    """Starts of a program in one text without training that ended in an error, from which the last is not all that
    counts."""
    numbers_share: float = 0.4
    """The share of a line's cells that are numbers in a row of a table: a frame of a traceback has one in six."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """Which lines of free text are rows."""

    covered: float = 0.5
    """The share of a line without a counter that must be named numbers: prose has a number here and there."""
    covered_beside_counter: float = 0.12
    """The share of a line with a counter: little is enough, but a paragraph is not a row."""
    covered_lost: float = 0.25
    """The same where a number is lost: "WARNING: Loss is NaN, skipping batch" is worth reading."""
    read_share: float = 0.5
    """A format that reads less of the lines that look like training gives way to one that reads more."""
    announcement_characters: int = 16
    """Characters that may be beside a counter on a line that only announces a place."""
    section_characters: int = 40
    """Characters of a line that only says what the lines after it were measured on."""
    comma_pairs: int = 3
    """Names and numbers in turn between commas from which a line is made of such pairs: two may be an enumeration."""
    shape_rows: int = 6
    """Rows with a counter and the same unknown names from which they are series, where nothing else in the text is."""
    points: int = 2
    """Points of a named number that is no loss: one seen once in a long log is prose."""
    sure_share: float = 0.5
    """What of that share is enough where a number is lost ("nan" is half as long as "0.5217") or the counter has its
    total, as on a progress bar, which is long whatever it tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRule:
    """Which lists of numbers in a text are series, and which columns without a telling name."""

    numbers: int = 3
    """Numbers from which a list is a series: two may be a range or a shape."""
    numbers_in_row: int = 8
    """Numbers from which a row with a name before it is a series: fewer are a row of a table."""
    character_share: float = 0.5
    """The share of the text that must be in such lists; else they summarise what other lines say."""
    before_name: int = 40
    """Characters that may come before a name: a time, a bullet."""
    unnamed_points: int = 6
    """Points from which a column without a telling name is a series."""
    unnamed_runs: int = 64
    """Columns beyond which a table of them holds data, not runs side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """Which lines are a table, and what its columns may be: with a header, drawn with bars, or of bare numbers."""

    pair_share: float = 0.34
    """The share of a header's names that may hold a colon and a number: more are a line of a log."""
    fitting_share: float = 0.6
    """The share of the rows that must have the header's cells."""
    preamble_lines: int = 3
    """Lines of settings that may come before the header of a file that is called a table."""
    wide: int = 5
    """From this many columns on a row does not fit its header by chance …"""
    fitting_share_wide: float = 0.4
    """… and every other row may be something else: some programs write two tables into one file."""
    bordered_rows: int = 4
    """Rows from which bars may be those of a log."""
    known_names: int = 2
    """Names of known metrics in a printed header without a counter; its rows are counted …"""
    known_share: float = 0.5
    """… and the share of the names that they must be: a sentence may hold two."""
    bare_rows: int = 6
    """Rows from which numbers without a name are a series."""
    bare_rows_named: int = 3
    """The same where the file's name says what they are."""
    matrix_width: int = 50
    """Numbers per row from which the rows of a file whose name says what they are, all of one length, are a series cut
    into rows, or runs side by side: read in the order of the file, and not judged."""
    bare_share: float = 0.95
    """The share of the lines that must be rows of numbers."""
    width_share: float = 0.6
    """The share of the rows that must have as many numbers as most of them."""
    bare_columns: int = 16
    """Numbers per row beyond which it is data, not a log."""
    unnamed_columns: int = 2
    """Columns of which the first may be the loss: of more, any may be."""
    unnamed_beside_counter: int = 4
    """The same after a counter: who prints the epoch prints the loss next, then what is derived from it."""
    unknown_columns: int = 8
    """Numbers per row after a counter, the counter with them, in a file whose name says nothing: more is data."""
    counting_share: float = 0.9
    """The share of the rows that must go on from the one before for a column to be a counter."""
    sum_tolerance: float = 0.01
    """How near the sum of the other columns a total must be, relative to it: logs round."""
    fallen_share: float = 0.9
    """The share of the last tenth of a nameless series that must lie below the middle of the first for it to have
    fallen: what is predicted or measured ends a little lower by chance."""
