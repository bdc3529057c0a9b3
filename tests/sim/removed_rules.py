"""The rules of the daemon and of launchers that `make sim-mutants` removes, one at a time, and what detects each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A rule, and how to remove it from a module (its dotted name)."""

    name: str
    module: str
    old: str
    new: str
    # What detects it, below tests/; "" where random scenarios have to.
    test: str = ""


MUTANTS = (
    Mutant(
        "intent-first write",
        "supervisor.runtime.loop",
        "        try:\n            revision = self._journal.commit(",
        "        for action in commit.actions:\n            self._start(action)\n"
        "        try:\n            revision = self._journal.commit(",
    ),
    Mutant(
        "fence: commits are guarded by leadership",
        "supervisor.runtime.loop",
        "self._journal.commit(commit, self._leader.guard())",
        "self._journal.commit(commit, ())",
    ),
    Mutant(
        "fence: commits are guarded by the records' revisions",
        "supervisor.journal.journal",
        '            guards.append(Compare(key, "mod", revision))\n',
        "            pass\n",
        "sim/test_promises.py::test_a_command_that_is_stored_between_a_daemons_read_and_its_write_is_not_overwritten",
    ),
    Mutant(
        "two sightings before an orphan is ended",
        "supervisor.planner.orphans",
        "if seen.listings >= 2 and now - seen.first_at >= world.rules.orphan_grace_s",
        "if seen.listings >= 1",
    ),
    Mutant(
        "two listings without a silent machine before it is lost",
        "supervisor.planner.sync",
        "if not node.instance_id or draft.cloud.missed_listings.get(node.id, 0) < 2:",
        "if not node.instance_id or draft.cloud.missed_listings.get(node.id, 0) < 1:",
    ),
    Mutant(
        "evidence: a failed listing is none",
        "supervisor.planner.reads",
        "    if done.error:\n        volatile =",
        "    if False:\n        volatile =",
    ),
    Mutant(
        "evidence: a node with messages is not lost, whatever listings lack",
        "supervisor.planner.sync",
        "if draft.now - node.launched_at < draft.rules.consistency_s or is_heard(draft, node):",
        "if draft.now - node.launched_at < draft.rules.consistency_s:",
    ),
    Mutant(
        "evidence: a suspicion has to run out",
        "supervisor.planner.silence",
        "    if quiet_s < draft.rules.suspect_s or _unlisted(draft, node):",
        "    if _unlisted(draft, node):",
    ),
    Mutant(
        "silence: many that fall silent together are held",
        "supervisor.planner.silence",
        "    if len(everyone.since) < 2:",
        "    if everyone:",
        "sim/test_silence.py::test_one_node_each_of_two_jobs_is_many",
    ),
    Mutant(
        "silence: the listing is newer than the suspicion",
        "supervisor.planner.silence",
        "    return draft.cloud.listed_at <= node.state_since",
        "    return False",
        "sim/test_silence.py::test_a_single_silent_node_is_kept_until_its_cloud_was_listed_after_it_fell_silent",
    ),
    Mutant(
        "silence: a single silent node whose steps advance is kept",
        "supervisor.planner.silence",
        "    if answer is None or answer.advances or answer.asked_at < draft.now - quiet_s:",
        "    if answer is None:",
        "sim/test_silence.py::test_a_single_silent_node_whose_steps_advance_is_kept_and_people_are_told",
    ),
    Mutant(
        "silence: after a hold a suspicion begins anew",
        "supervisor.planner.silence",
        "draft.elapsed_s(max(node.state_since, draft.volatile.held_at.get(node.id, 0.0)))",
        "draft.elapsed_s(node.state_since)",
        "sim/test_silence.py::test_those_that_remain_silent_when_the_others_are_back_are_judged_one_by_one",
    ),
    Mutant(
        "unknown is never treated as not launched",
        "supervisor.planner.outcomes",
        "            return draft.set_node(node, launch_unknown=True, retry_at=retry_at, error=outcome.message)",
        "            return _refused(draft, node, outcome.message)",
    ),
    Mutant(
        "gone only by a later listing",
        "supervisor.planner.sync",
        "    if listed_gone or unlisted or not node.instance_id:",
        "    if True:",
    ),
    Mutant(
        "stopped machines count as not ended",
        "supervisor.planner.orphans",
        "    if instance.state in {InstanceState.TERMINATED, InstanceState.UNREADABLE}:\n        return False\n",
        "    if instance.state is not InstanceState.RUNNING:\n        return False\n",
    ),
    Mutant(
        "ownership: what others have is neither ended, removed nor taken over",
        "supervisor.runtime.actor",
        "        return tuple(each for each in found if each.owner == self._owner)",
        "        return tuple(found)",
        "sim/test_ownership.py::test_nothing_of_other_installations_is_ended_removed_or_taken_over",
    ),
    Mutant(
        "ownership: a token finds our machine alone",
        "supervisor.runtime.actor",
        "if found is not None and found.owner != self._owner:",
        "if False:",
        "sim/test_ownership.py::test_a_machine_of_others_under_our_token_is_not_taken_for_one_whose_reply_was_lost",
    ),
    Mutant(
        "a drained node has left the round before it ends",
        "supervisor.planner.release",
        "        case N.DRAINING if has_left(draft, node):",
        "        case N.DRAINING:",
        "sim/test_drain_and_pause.py::test_a_drained_node_trains_on_until_it_is_replaced_and_then_leaves_in_order",
    ),
    Mutant(
        "one place per job",
        "supervisor.market.offers",
        "    return not refused and constraints.in_place(offer) and constraints.affordable(offer)",
        "    return not refused and constraints.affordable(offer)",
    ),
    Mutant(
        "no more money per hour than allowed",
        "supervisor.market.offers",
        "    return not refused and constraints.in_place(offer) and constraints.affordable(offer)",
        "    return not refused and constraints.in_place(offer)",
    ),
    Mutant(
        "a zone that takes new machines is not asked again at once",
        "supervisor.planner.sync",
        "    if node.state in IN_FLIGHT_NODE_STATES and not node.bootstrapped:\n        refuse_late(",
        "    if False:\n        refuse_late(",
        "sim/test_refusals.py::test_zones_that_keep_no_machine_are_asked_ever_more_rarely_and_again_once_they_keep_them",
    ),
    Mutant(
        "a job with a limit of money takes no machine without a price",
        "supervisor.market.offers",
        "            return offer.usd_per_hour is not None or not self.needs_price",
        "            return True",
        "sim/test_refusals.py::test_a_job_with_a_limit_of_money_uses_no_machine_without_a_price_and_another_says_so",
    ),
    Mutant(
        "failed replacements never end a job that has trained",
        "supervisor.planner.jobs",
        " and not has_trained(draft):",
        ":",
        "sim/test_failed_replacements.py::test_a_job_that_lost_all_nodes_meanwhile_waits_tries_one_machine_at_a_time_and_trains_again",
    ),
    Mutant(
        "a command is guarded by the record's revision",
        "supervisor.journal.journal",
        'Compare(self._job_key(record.name), "mod", view.revision)]',
        "]",
    ),
    Mutant(
        "a limit pauses a job, and does not end it",
        "supervisor.planner.limits",
        "        draft.set_job(pause_requested_at=draft.now, limit_reached=over.name)\n",
        "        draft.move_job(type(job.state).FAILED, over.name)\n",
        "sim/test_job_limits.py::test_at_a_limit_the_job_pauses_without_losing_a_step_and_goes_on_when_it_is_raised",
    ),
    Mutant(
        "an ended run is kept when its name is used again",
        "supervisor.journal.journal",
        "[Put(self._past_key(name, run.job.run), dump(run))]",
        "[]",
        "sim/test_past_runs.py::test_the_old_run_keeps_its_state_its_events_and_its_cost",
    ),
    Mutant(
        "hours count training, not waiting",
        "supervisor.planner.limits",
        "    return not draft.job.ended and len(inside) >= draft.job.min_nodes\n",
        "    return not draft.job.ended\n",
        "sim/test_job_limits.py::test_waiting_for_machines_uses_up_no_hours",
    ),
    Mutant(
        "GPUs: a node whose GPU died is not in the next round",
        "spotsup_trainer.rendezvous.membership",
        "    return leaving | unhealthy(view)",
        "    return leaving",
        "sim/test_gpus.py::test_a_dead_gpu_that_cannot_be_replaced_ends_no_job_however_often_its_worker_would_fail",
    ),
    Mutant(
        "GPUs: reports of many at once are not believed",
        "supervisor.planner.unhealthy",
        "return recent if recent > 1 and recent * 10 > there else 0",
        "return 0",
        "sim/test_gpus.py::test_when_all_nodes_call_their_gpus_unhealthy_at_once_none_is_ended_and_people_are_told_once",
    ),
    Mutant(
        "an alert stays until it is delivered",
        "supervisor.planner.alerts",
        "(d := deliveries.get(event_id)) and d.finished]",
        "(d := deliveries.get(event_id))]",
    ),
    Mutant(
        "a hang is reported once",
        "supervisor.planner.alerts",
        "    if since and not draft.job.hung_since:",
        "    if since:",
        "sim/test_hangs.py::test_steps_that_hang_are_one_alert_and_so_is_the_next_step",
    ),
    Mutant(
        "workers that outlive SIGKILL are reported once",
        "supervisor.planner.alerts",
        "        if problem and problem != node.worker_problem and not draft.full:",
        "        if problem and not draft.full:",
        "sim/test_hangs.py::test_workers_that_outlive_sigkill_hold_one_node_out_and_after_a_minute_it_is_replaced",
    ),
    Mutant(
        "an early failure ends a job at the second of its kind only",
        "spotsup_trainer.rendezvous.membership",
        "    if before is None or now.round != before.round + 1:\n        return False\n",
        "    if before is None:\n        return True\n",
        "sim/test_program_failures.py::test_one_failure_soon_after_the_start_ends_no_job_and_a_second_one_of_its_kind_does",
    ),
    Mutant(
        "windows: a node leaves in time for its job's checkpoint",
        "supervisor.planner.predicates",
        "draft.now >= node.notice.deadline - leaving_takes_s(draft)",
        "draft.now >= node.notice.deadline - draft.rules.leave_margin_s",
        "sim/test_windows.py::test_a_node_whose_metadata_service_is_away_leaves_in_time_by_the_clouds_own_announcement",
    ),
    Mutant(
        "silence: what its provider ended is lost at once, although many are silent",
        "supervisor.planner.sync",
        "    if instance.state in ENDED_BY_ITSELF:\n",
        "    if instance.state in ENDED_BY_ITSELF and not draft.hold.nodes:\n",
        "sim/test_silence.py::test_what_the_provider_ended_among_many_that_are_silent_is_replaced_and_the_others_are_kept",
    ),
    Mutant(
        "a request that can never work concerns its own job",
        "supervisor.planner.outcomes",
        "NoCapacity(Scope.TYPE_IN_ZONE, FATAL_MEMORY_S, outcome.message), draft.job.name)",
        "NoCapacity(Scope.TYPE_IN_ZONE, FATAL_MEMORY_S, outcome.message))",
        "sim/test_refusals.py::test_one_jobs_impossible_request_keeps_nothing_from_another_job",
    ),
    Mutant(
        "a request that can never work concerns its type and zone",
        "supervisor.planner.outcomes",
        "NoCapacity(Scope.TYPE_IN_ZONE, FATAL_MEMORY_S, outcome.message), draft.job.name)",
        "NoCapacity(Scope.GLOBAL, FATAL_MEMORY_S, outcome.message), draft.job.name)",
        "sim/test_refusals.py::test_a_request_that_one_type_can_never_grant_is_granted_by_another",
    ),
    Mutant(
        "expired credentials are waited for",
        "supervisor.planner.outcomes",
        "    if outcome.scope is not Scope.GLOBAL:\n        _remember(draft, node, outcome)\n",
        "    if True:\n        return _fatal(draft, node, Fatal(outcome.message))\n",
        "sim/test_refusals.py::test_credentials_that_expire_before_the_first_request_fail_no_new_job",
    ),
    Mutant(
        "a quota covers its own family",
        "supervisor.market.capacity",
        "(region, offer.quota), ",
        "(region,), ",
        "sim/test_refusals.py::test_a_used_up_quota_keeps_nothing_from_another_family",
    ),
    Mutant(
        "a new leader believes what clouds answered",
        "supervisor.runtime.loop",
        "                self._believe(reading.capacity)",
        "                pass",
        "sim/test_journaled_capacity.py::test_a_daemon_that_restarts_each_minute_asks_each_pool_once_in_its_time",
    ),
    Mutant(
        "what is spent follows prices that change",
        "supervisor.planner.prices",
        "        _reprice(draft, node, now_offered.usd_per_hour, now_offered.price_source)",
        "        pass",
        "sim/test_refusals.py::test_what_is_spent_follows_prices_that_change_also_over_a_takeover",
    ),
    Mutant(
        "a round has a multiple of the nodes that a job asks for",
        "spotsup_trainer.rendezvous.membership",
        "[: count - count % multiple_of(view)]",
        "[:count]",
        "sim/test_program_failures.py::test_a_job_that_trains_on_pairs_trains_on_two_of_three_nodes_until_the_fourth_is_back",
    ),
    Mutant(
        "failures of the program start anew after progress",
        "spotsup_trainer.rendezvous.membership",
        "0 if has_progressed else last.app_failures",
        "last.app_failures",
        "sim/test_program_failures.py::test_after_three_checkpoints_failures_of_the_program_start_anew",
    ),
    Mutant(
        "GPUs: a type whose GPUs die again and again is blocked",
        "supervisor.planner.outcomes",
        "    if count >= rules.max_unhealthy_streak:\n",
        "    if False:\n",
        "sim/test_gpus.py::test_a_type_whose_gpus_die_again_and_again_is_blocked_and_its_nodes_train_on",
    ),
    Mutant(
        "rounds whose steps hang are formed anew three times a day",
        "spotsup_trainer.rendezvous.membership",
        "    return sum(at - hung_at < _HANG_WINDOW_S for hung_at in current.recent_hangs) < MAX_HANG_RESTARTS",
        "    return True",
        "sim/test_hangs.py::test_a_job_that_asks_for_it_is_formed_anew_three_times_a_day_and_its_program_is_not_blamed",
    ),
    Mutant(
        "windows: leaving takes as long as the job's checkpoints",
        "spotsup_trainer.timing",
        "return margin_s + self.step_s + 2 * self.checkpoint_s",
        "return margin_s + self.step_s",
        "sim/test_windows.py::test_no_step_is_lost_where_a_notice_is_longer_than_a_checkpoint",
    ),
    Mutant(
        "windows: a pause waits for the job's checkpoint",
        "supervisor.planner.predicates",
        "    return max(draft.rules.drain_timeout_s, measured_s + draft.rules.leave_margin_s)",
        "    return draft.rules.drain_timeout_s",
        "sim/test_windows.py::test_a_pause_waits_for_a_checkpoint_of_ten_minutes_and_not_for_ever",
    ),
    Mutant(
        "windows: all checkpoint before too few are left",
        "supervisor.planner.rounds",
        "    elif len(chosen) < draft.job.min_nodes and (leaving := _leaving(draft)):",
        "    elif len(chosen) < 0 and (leaving := _leaving(draft)):",
        "sim/test_windows.py::test_no_step_is_lost_where_too_few_nodes_are_left_and_only_the_daemon_knows_of_the_notice",
    ),
    Mutant(
        "messages: what cannot be read is left alone",
        "supervisor.journal.reading",
        "        except WireError as error:\n",
        "        except ZeroDivisionError as error:\n",
        "sim/test_broken_messages.py",
    ),
    Mutant(
        "messages: one counts only for the node of its key",
        "supervisor.journal.reading",
        "    if node and message.node != node:",
        "    if False:",
        "sim/test_broken_messages.py",
    ),
    Mutant(
        "boundaries: what fails for one job changes nothing of another",
        "supervisor.planner.boundary",
        "        except Exception as error:  # noqa: BLE001 - the loop logs it with its traceback",
        "        except ZeroDivisionError as error:",
        "unit/test_boundaries.py",
    ),
    Mutant(
        "boundaries: a commit is bounded by its bytes",
        "supervisor.journal.journal",
        "if len(operations) > MAX_OPERATIONS or size > MAX_COMMIT_BYTES:",
        "if len(operations) > MAX_OPERATIONS:",
        "unit/test_boundaries.py",
    ),
    Mutant(
        "logs: a machine stays until its agent has sent the end of the log",
        "supervisor.planner.predicates",
        "    return works and draft.elapsed_s(draft.job.ended_at) < draft.rules.last_log_s",
        "    return False",
        "unit/test_plan_jobs.py",
    ),
)
