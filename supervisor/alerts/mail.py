"""E-mail, by SMTP with TLS."""

from __future__ import annotations

import contextlib
import hashlib
import smtplib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate

import structlog

from supervisor.alerts.senders import TIMEOUT_S, Outgoing, Receipt, without
from supervisor.alerts.texts import plain_text, subject
from supervisor.model import Event

log = structlog.get_logger("spotsupd")


@dataclass(frozen=True, slots=True)
class MailServer:
    """How to reach a mail server. `tls`: `starttls`, `tls` from the first byte on, or `none`."""

    host: str
    port: int
    tls: str = "starttls"
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""  # file with the CA certificate to verify it with; "": the system's


class Mail:
    """Sends one e-mail to all recipients."""

    def __init__(self, server: MailServer, sender: str, recipients: Sequence[str], cluster: str) -> None:
        self._server, self._sender, self._recipients, self._cluster = server, sender, tuple(recipients), cluster

    def send(self, message: Outgoing) -> Receipt:
        """Send one e-mail of all events. Its Message-ID is the same where the same events are sent again."""
        try:
            smtp = self._open()
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return Receipt(error=self._failure(error))
        try:
            refused = smtp.send_message(_mail(message, self._sender, self._recipients, self._cluster))
        except smtplib.SMTPDataError as error:
            return Receipt(error=self._failure(error), refused=error.smtp_code >= 500)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return Receipt(error=self._failure(error))
        finally:
            with contextlib.suppress(OSError, smtplib.SMTPException):  # what it has taken, it has taken
                smtp.quit()
            smtp.close()
        if refused:
            log.warning("the mail server refused some recipients", recipients=", ".join(sorted(refused)))
        return Receipt(delivered=tuple(event.id for event in message.events))

    def try_without_sending(self) -> str:
        """Connect, log in, and leave."""
        try:
            smtp = self._open()
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return f"{self._failure(error)}: check the server, its user and its password"
        with contextlib.suppress(OSError, smtplib.SMTPException):
            smtp.quit()
        return ""

    def _open(self) -> smtplib.SMTP:
        server = self._server
        context = ssl.create_default_context(cafile=server.ca or None)
        name = socket.gethostname()  # not getfqdn(), which may ask a name server that is away
        if server.tls == "tls":
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, name, timeout=TIMEOUT_S, context=context)
        else:
            smtp = smtplib.SMTP(server.host, server.port, name, timeout=TIMEOUT_S)
        try:
            if server.tls == "starttls":
                smtp.starttls(context=context)
            if server.user:
                smtp.login(server.user, server.password)
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _failure(self, error: Exception) -> str:
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            code, text = next(iter(error.recipients.values()))
            said = f"it refuses the recipients, {code} {text.decode(errors='replace')}"
        elif isinstance(error, smtplib.SMTPResponseException):
            raw = error.smtp_error
            said = f"it answers {error.smtp_code} {raw.decode(errors='replace') if isinstance(raw, bytes) else raw}"
        else:
            said = f"it does not answer: {error or type(error).__name__}"
        return f"mail server {self._server.host}: {without(said, self._server.password)}"


def _mail(message: Outgoing, sender: str, recipients: Sequence[str], cluster: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, ", ".join(recipients), subject(message.events)
    mail["Date"] = formatdate(max(event.at for event in message.events))
    mail["Message-ID"] = _message_id(" ".join(event.id for event in message.events), cluster)
    tasks = {_task(event) for event in message.events}
    if len(tasks) == 1 and "" not in tasks:
        mail["References"] = _message_id(tasks.pop(), cluster)  # mail programs show those of a job as one thread
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no absence notes in return
    mail.set_content(plain_text(message.events) + "\n")
    return mail


def _task(event: Event) -> str:
    return event.id.rpartition("-")[0] if event.job else ""


def _message_id(text: str, cluster: str) -> str:
    return f"<{hashlib.sha256(text.encode()).hexdigest()[:32]}@{cluster}.spotsup>"
