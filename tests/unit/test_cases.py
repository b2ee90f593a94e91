"""The 25 cases that broke other job systems, and the tests that show them here. Each test says in its words what to remove to see it fail.

Case 25 shows what there is of it: its pages come with the dashboard.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

CASES = {
    "1 killed, and restarted under the same name": (
        "chaos/test_kills.py::test_the_jobs_of_a_killed_worker_are_given_back",
        "store/test_rescue.py::test_a_namesake_that_beats_keeps_no_dead_worker_alive",
    ),
    "2 a handler holds the event loop or the interpreter for longer than the lease": (
        "chaos/test_kills.py::test_a_worker_that_blocks_its_event_loop_keeps_its_jobs",
        "chaos/test_vouching.py::test_a_handler_that_holds_the_interpreter_keeps_its_jobs",
    ),
    "3 stopped, its job done by another, woken late": (
        "chaos/test_kills.py::test_a_stopped_worker_that_wakes_late_changes_nothing",
        "chaos/test_kill_points.py::test_stopped_and_woken_late",
        "store/test_rescue.py::test_a_late_settle_of_a_rescued_job_is_refused",
    ),
    "4 a rescuer pauses while the job ends": (
        "store/test_rescue.py::test_a_job_that_ends_while_its_worker_is_being_rescued_stays_ended",
    ),
    "5 errors and results that cannot be stored": (
        "walk/test_hostile_shapes.py::test_whatever_is_raised_is_kept_as_text",
        "walk/test_hostile_shapes.py::test_whatever_cannot_be_stored_ends_the_job_dead",
        "unit/test_failure.py::test_a_giant_is_cut_and_quick",
    ),
    "6 arguments that cannot be stored": (
        "unit/test_codec.py::test_is_refused_with_path_and_reason",
        "store/test_enqueue.py::test_of_many_the_error_names_the_first_bad_one_and_none_is_stored",
        "property/test_codec.py::test_text_is_taken_exactly_if_it_is_clean",
    ),
    "7 the millionth attempt of every backoff": (
        "property/test_retry.py::test_the_delay_is_usable_or_the_job_is_dead",
        "chaos/test_reconnects.py::test_the_pause_never_raises_and_stays_within_its_bounds",
        "chaos/test_reconnects.py::test_an_outage_of_two_thousand_failures",
    ),
    "8 SIGTERM with max_attempts=1": ("chaos/test_shutdown.py::test_what_outlives_the_grace_period_is_released",),
    "9 signals once, twice, thrice, whatever goes on": (
        "chaos/test_supervisor.py::test_it_ends_in_time_with_the_right_code",
        "chaos/test_supervisor.py::test_told_to_stop_while_the_database_is_away",
        "chaos/test_shutdown.py::test_one_order_delivered_twice_counts_once",
    ),
    "10 a handler raises what ends programs": (
        "walk/test_handlers.py::test_whatever_a_handler_raises_only_its_job_fails",
        "walk/test_process_ends.py::test_whatever_a_handler_raises_only_its_job_fails",
    ),
    "11 restart, failover, half-open sockets": (
        "chaos/test_outages.py::test_a_worker_survives_a_restart_of_the_server",
        "chaos/test_failover.py::test_what_an_asynchronous_failover_undoes",
        "chaos/test_failover.py::test_a_primary_that_turns_read_only_under_its_connections",
        "chaos/test_network.py::test_an_answer_that_never_comes_is_not_waited_for",
    ),
    "12 only the listening connection dies, or nobody reads it": (
        "walk/test_listening.py::test_a_cut_ear_listens_again_and_the_loop_watches_the_new_one",
        "walk/test_listening.py::test_the_servers_queue_is_not_pinned_by_a_blocked_worker",
        "chaos/test_reconnects.py::test_each_connection_in_turn",
    ),
    "13 the queue of notifications is full; poolers": (
        "chaos/test_notify_queue.py::test_everything_goes_on_while_the_queue_is_full",
        "chaos/test_notify_queue.py::test_names_of_any_text",
        "chaos/test_pgbouncer.py::test_a_worker_finds_out_that_it_hears_nothing",
    ),
    "14 cut between the commit and its answer": (
        "chaos/test_cut_points.py::test_every_statement_of_a_worker",
        "chaos/test_cut_points.py::test_a_cut_enqueue_says_that_its_fate_is_unknown",
    ),
    "15 other isolation levels; 40001, 40P01, 55P03, 57014 in each verb": (
        "store/test_isolation.py::test_many_workers_at_once_meet_no_serialization_failure",
        "chaos/test_injected_errors.py::test_every_verb_fails_once",
        "chaos/test_injected_errors.py::test_every_verb_fails_for_a_while",
    ),
    "16 clients in opposite order": (
        "chaos/test_injected_errors.py::test_clients_in_opposite_order_never_meet_a_deadlock",
        "store/test_lock_order.py::test_arming_and_disarming_lock_in_one_order",
        "store/test_unique_races.py::test_two_batches_in_opposite_order_never_wait_for_each_other",
        "chaos/test_unique.py::test_there_is_one_live_job_a_key_at_any_time",
    ),
    "17 a unique insert waits for a holder": (
        "store/test_unique_races.py::test_an_insert_waits_for_one_that_is_under_way",
        "store/test_unique_races.py::test_an_insert_waits_for_an_end_that_is_under_way",
        "walk/test_unique.py::test_in_the_callers_transaction",
    ),
    "18 twenty claimers, the worst plan": (
        "store/test_claim.py::test_every_job_goes_to_exactly_one_of_many_claimers",
        "store/test_budgets.py::test_a_verb_locks_only_the_rows_it_was_asked_for",
        "chaos/test_hammer.py::test_every_job_is_completed_exactly_once",
    ),
    "19 two of one key in one batch": (
        "store/test_unique.py::test_two_of_one_key_due_at_once_do_not_stop_a_batch",
        "store/test_unique.py::test_a_retry_is_refused_while_another_has_the_key",
    ),
    "22 numbers beyond 2³¹": (
        "walk/test_beyond_int4.py::test_every_verb",
        "walk/test_beyond_int4.py::test_a_worker_from_start_to_shutdown",
    ),
    "23 a million of each, and a long transaction": (
        "store/test_budgets.py::test_every_verb_keeps_its_budget_of_pages",
        "store/test_budgets.py::test_dead_rows_make_no_job_dearer_under_an_old_snapshot",
        "store/test_plans.py::test_jobs_for_others_in_front_are_not_looked_at",
    ),
    "20 the next fire against a slow scan of every zone": (
        "property/test_schedule_scan.py::test_every_zone_around_its_changes",
        "property/test_schedule_scan.py::test_strange_changes",
        "property/test_schedule_scan.py::test_29_february_over_a_century_without_one",
    ),
    "21 scheduler away over a tick, several with clocks apart, looked at on and after the second": (
        "store/test_schedules.py::test_the_scheduler_was_away",
        "store/test_schedules.py::test_two_that_make_it_at_once",
        "store/test_schedules.py::test_a_fire_is_made_once_and_never_early",
        "chaos/test_schedules.py::test_three_hosts_and_one_is_killed_at_the_tick",
    ),
    "24 upgrades under load": (
        "compat/test_live_migration.py::test_migrate_in_the_middle_of_it",
        "compat/test_side_by_side.py::test_a_shared_queue_under_load",
        "store/test_migrate_locks.py::test_of_ten_processes_one_migrates",
    ),
    "25 hostile names; secrets in logs": (
        "walk/test_names.py::test_names_of_any_printable_text_work_everywhere",
        "store/test_desk.py::test_text_in_filters_is_only_text",
    ),
}


@pytest.mark.parametrize(("case", "test"), [(case, test) for case, tests in CASES.items() for test in tests])
def test_it_exists_and_says_what_it_shows(case: str, test: str) -> None:
    path, name = test.split("::")
    module = ast.parse((TESTS / path).read_text())
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in functions, f"case {case}: {path} has no {name}"
    assert ast.get_docstring(module), f"{path} does not say what it shows"
