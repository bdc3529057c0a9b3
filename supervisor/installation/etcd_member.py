"""etcd's member on this host, where etcd has several hosts: how it begins, and whether it runs.

It begins once. The unit starts etcd only where it has data, or where `BEGIN` says how to begin; that file lies beside
the data, so that both are lost together, and then nothing starts before `spotsupd init` has asked the other hosts.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from spotsup_trainer.etcd import Etcd, EtcdError, EtcdRefusedError, EtcdUnavailableError

from supervisor.errors import StartError
from supervisor.files import replace_file
from supervisor.installation.answers import https
from supervisor.installation.etcd_program import Version, too_old
from supervisor.installation.layout import BEGIN, PEER_PORT, peer_url
from supervisor.installation.members import Answer, Member, Rejoining, has_formed, refusal, rejoining
from supervisor.journal.certificates import TlsFiles
from supervisor.journal.connection import EtcdLogin

ASK_S = 3.0
# A member that waits for its first leader is started anew by systemd every 90 s, and is away for a second or two.
ASK_AGAIN_S = 15.0
# etcd changes its members only while all of them have been connected for 5 s (server.go: HealthInterval), and another
# host may be joining.
CHANGE_S = 60.0
_PAUSE_S = 1.0
_MAX_BYTES = 1 << 20
# Of an etcd whose users are yet to be made.
_NO_USERS = "authentication is not enabled"


@dataclass(frozen=True, slots=True)
class MemberHere:
    """`own`, `others`: hosts' addresses. `login`: the daemons'. `tls`: this host's. `data`: of its etcd. `begun`: a
    file that is there from its first start on."""

    own: str
    others: tuple[str, ...]
    login: EtcdLogin
    tls: TlsFiles
    data: Path
    begun: Path
    # Of the program here; None: not compared.
    version: Version | None = None
    # How long others are asked that do not answer.
    ask_again_s: float = ASK_AGAIN_S

    def runs(self) -> str:
        """Why its process does not answer its peers soon, "" if it does: with a leader or without."""
        deadline = time.monotonic() + self.ask_again_s
        while (problem := self._ask(self.own).problem) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return problem

    def take_place(self, *, first: bool, stop: Callable[[], object], limit_s: float = CHANGE_S) -> str:
        """Let etcd begin here, if it has no data. Returns what was done besides, or "". `first`: the installation is
        made on this host. `stop`: stops etcd. `limit_s`: for the others to change their members.

        Raises StartError where it may not begin, or where that cannot be known.
        """
        begin = self.data / BEGIN
        if has_data(self.data):
            begin.unlink(missing_ok=True)
            return ""
        answers = self._answers(0.0 if first else self.ask_again_s)
        if problem := refusal(answers, first=first and not self.begun.exists()):
            raise StartError(problem)
        if has_formed(answers):
            self._check_version()
        stop()
        self._move_remains()
        plan = self._change_members(limit_s) if has_formed(answers) else Rejoining()
        replace_file(self.begun, b"etcd has begun on this host\n", 0o600)
        replace_file(begin, f"ETCD_INITIAL_CLUSTER_STATE={'existing' if plan.existing else 'new'}\n".encode(), 0o600)
        owner = self.data.stat()
        for path in (self.begun, begin):
            os.chown(path, owner.st_uid, owner.st_gid)
        return f"etcd had a member at {self.own}, whose data are not here: a new one takes its place" * plan.existing

    def _move_remains(self) -> None:
        """Without its log the rest of a member's data is of no use, and etcd would begin with it."""
        remains = self.data / "member"
        if remains.exists():
            remains.rename(self.data / f"member.lost-{int(time.time())}")

    def _answers(self, patience_s: float) -> list[Answer]:
        deadline = time.monotonic() + patience_s
        while True:
            with ThreadPoolExecutor(len(self.others)) as pool:
                found = list(pool.map(self._ask, self.others))
            if time.monotonic() >= deadline or any(each.members is not None or each.foreign for each in found):
                return found
            time.sleep(_PAUSE_S)

    def _ask(self, host: str) -> Answer:
        """Each member tells its peers whom it knows (etcd's api/etcdhttp/peer.go), also while there is no leader."""
        context = ssl.create_default_context(cafile=str(self.tls.ca))
        context.check_hostname = False  # whoever has a certificate of the CA is one of the hosts
        context.load_cert_chain(self.tls.cert, self.tls.key)
        connection = http.client.HTTPSConnection(host, PEER_PORT, timeout=ASK_S, context=context)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/members")
                reply = connection.getresponse()
                if reply.status != http.HTTPStatus.OK:
                    return Answer(host, None, f"it answers with status {reply.status}")
                return Answer(host, tuple(Member.of(each) for each in json.loads(reply.read(_MAX_BYTES))))
            except ssl.SSLError as error:
                return Answer(host, None, str(error.reason or error), foreign=True)
            except (OSError, http.client.HTTPException) as error:
                return Answer(host, None, getattr(error, "strerror", "") or str(error) or type(error).__name__)
            except (ValueError, TypeError, AttributeError) as error:
                return Answer(host, None, f"its answer is none of etcd's ({error})")

    def _check_version(self) -> None:
        logins = (replace(self.login, endpoints=(https(host),)) for host in self.others)
        found = [version for login in logins if (version := version_of(login)) is not None]
        if self.version is not None and (problem := too_old(self.version, found)):
            raise StartError(problem)

    def _change_members(self, limit_s: float) -> Rejoining:
        """Have the others forget the member whose data were here, and wait for another one. Raises StartError."""
        deadline = time.monotonic() + limit_s
        while True:
            for host in self.others:
                try:
                    return self._change_members_at(https(host))
                except EtcdError as error:
                    problem = f"{host}: {error}"
            if time.monotonic() > deadline:
                raise StartError(
                    f"etcd has had a leader, and the other hosts do not agree now on who its members are ({problem}): "
                    f"all of {', '.join(self.others)} that are not lost have to run, and those that are lost have to "
                    "come back or be replaced at the same time. See to that, and repeat"
                )
            time.sleep(_PAUSE_S)

    def _change_members_at(self, endpoint: str) -> Rejoining:
        """Raises EtcdError."""
        login = replace(self.login, endpoints=(endpoint,))
        with contextlib.closing(login.connect(ASK_S)) as etcd:
            try:
                return self._changed(etcd)
            except EtcdRefusedError as error:
                if _NO_USERS not in str(error):
                    raise
        with contextlib.closing(login.anonymous().connect(ASK_S)) as etcd:
            return self._changed(etcd)

    def _changed(self, etcd: Etcd) -> Rejoining:
        # A member lists whom it knows. It has just caught up with its leader where it answers this read.
        etcd.get("/")
        own = peer_url(self.own)
        listed = etcd.call("/v3/cluster/member/list", {}).get("members", ())
        plan = rejoining([Member.of(each) for each in listed], own)
        if plan.remove:
            etcd.call("/v3/cluster/member/remove", {"ID": plan.remove})
        if plan.add:
            etcd.call("/v3/cluster/member/add", {"peerURLs": [own]})
        return plan


def has_data(folder: Path) -> bool:
    """Whether etcd has begun in a folder: as etcd itself decides it (wal.Exist)."""
    return any((folder / "member" / "wal").glob("*.wal"))


def version_of(login: EtcdLogin) -> Version | None:
    """Of the etcd at the first endpoint; None where none answers. Raises StartError."""
    with contextlib.closing(login.connect(ASK_S)) as etcd, contextlib.suppress(EtcdError):
        return Version.of(str(etcd.status().get("version", "")))
    return None


def answers(login: EtcdLogin, patience_s: float) -> bool:
    """Whether etcd has a leader, within some time."""
    deadline = time.monotonic() + patience_s
    with contextlib.closing(login.anonymous().connect(ASK_S)) as etcd:
        while True:
            try:
                etcd.get("/")
            except EtcdUnavailableError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.5)
                continue
            except EtcdError:
                pass  # it answers, to users only
            return True
