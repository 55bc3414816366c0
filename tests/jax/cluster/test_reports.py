"""Batches of a host's reports: what is taken at once, and what goes along."""

from __future__ import annotations

import threading

from pathways_nb.runtime.hosts.reports import HostRow, RangeEnded, Reports, StepEnded

ROW, RESULT, END = HostRow(1, "enqueue", 0.0, 1.0, 0), StepEnded(1, 3, 2.0), RangeEnded(1, 0, 4, 0.5)


def test_the_end_of_a_range_is_taken_at_once_with_all_before_it() -> None:
    reports = Reports()
    reports.quietly(ROW)
    reports.add(RESULT)
    reports.add(END)
    assert reports.collect(60.0) == [ROW, RESULT, END]
    assert reports.collect(0.0) == []


def test_a_result_does_not_wait_long_for_the_end_of_its_range() -> None:
    reports = Reports()
    reports.add(RESULT)
    assert reports.collect(60.0) == [RESULT]
    reports.add(END)
    assert reports.collect(60.0) == [END]


def test_what_nobody_waits_for_is_taken_after_a_while() -> None:
    reports = Reports()
    reports.quietly(ROW)
    assert reports.collect(60.0) == [ROW]


def test_whoever_waits_gets_the_next_report() -> None:
    reports, found = Reports(), []
    waiting = threading.Thread(target=lambda: found.append(reports.collect(60.0)))
    waiting.start()
    reports.add(END)
    waiting.join()
    assert found == [[END]]


def test_a_reset_forgets_reports_and_ends_the_wait() -> None:
    reports, found = Reports(), []
    reports.add(END)
    reports.reset()
    assert reports.collect(0.0) == []
    waiting = threading.Thread(target=lambda: found.append(reports.collect(60.0)))
    waiting.start()
    while waiting.is_alive():
        reports.reset()
        waiting.join(0.01)
    assert found == [[]]
