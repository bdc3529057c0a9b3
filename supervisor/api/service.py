"""What the API does, by resource: over the journal, for any daemon, leader or standby."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from supervisor.api.daemon.daemons import Daemons
from supervisor.api.jobs.commands import Commands
from supervisor.api.jobs.reading import Jobs
from supervisor.api.journal_copy import JournalCopy
from supervisor.api.quote import Quote
from supervisor.api.submit.job_files import JobFiles
from supervisor.api.submit.submissions import Submissions
from supervisor.curve import Curve
from supervisor.journal.journal import Journal, Reading
from supervisor.market.admission import QueueRules
from supervisor.model import JobRecord
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Leader
from supervisor.spec import JobSpec


class Service:
    """What the routes are of."""

    def __init__(  # noqa: PLR0913 - the last ones by name, with defaults
        self,
        journal: Journal,
        leader: Leader,
        clock: Clock,
        clouds: Sequence[str],
        wait_for: Callable[[Callable[[Reading], bool], float], bool],
        quote: Callable[[JobSpec], Quote] | None = None,
        *,
        hosted: Collection[str] = (),
        curve: Callable[[JobRecord], Curve | None] | None = None,
        queue: QueueRules = QueueRules(),  # noqa: B008 - frozen
        budgeted: bool = False,
    ) -> None:
        """`quote`: asks a job's cloud for offers; without it, none is asked before the job is stored.

        `hosted`: clouds whose machines are processes of this computer, and can mount nothing. `curve`: a job's training
        curve; by default as etcd has it. `queue`: the operator's limits. `budgeted`: each job needs a price."""
        copy = JournalCopy(journal, wait_for)
        self.daemons = Daemons(copy, leader, clock)
        self.jobs = Jobs(journal, curve or journal.curve)
        self.commands = Commands(copy, self.jobs, clock, queue)
        self.job_files = JobFiles(
            journal=journal, clock=clock, clouds=clouds, hosted=hosted, quote=quote, queue=queue, budgeted=budgeted
        )
        self.submissions = Submissions(copy, self.jobs, clock, self.job_files, frozenset(hosted))
