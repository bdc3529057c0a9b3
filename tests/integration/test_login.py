"""`spotsupctl login`: the token goes only to a daemon that was verified, and is kept where nobody else reads it."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result
from spotsup.contexts import Context, Contexts, checked_url, file_of_user, fingerprint, load

from supervisor.cli.ctl import main
from supervisor.cli.login import save
from supervisor.errors import CommandRefusedError, NotFoundError, UsageError
from tests.support.https import TOKEN, Https

pytestmark = [pytest.mark.usefixtures("collected_garbage"), pytest.mark.long]


@pytest.fixture
def https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Https]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    with Https.started(tmp_path / "state") as made:
        yield made


def ctl(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, [*arguments], input=stdin)


def login(https: Https, *more: str, token: str = TOKEN) -> Result:
    return ctl("login", f"https://127.0.0.1:{https.port}", "--token-file", "-", *more, stdin=token)


def test_who_logs_in_uses_that_daemon_from_then_on(https: Https, monkeypatch: pytest.MonkeyPatch) -> None:
    done = login(https, "--fingerprint", https.fingerprint)
    assert done.stdout == f"127.0.0.1: ann, admin, at https://127.0.0.1:{https.port}\n", done.output
    assert (stat.S_IMODE(file_of_user().stat().st_mode), stat.S_IMODE(file_of_user().parent.stat().st_mode)) == (
        0o600,
        0o700,
    )
    assert json.loads(ctl("list", "-o", "json").stdout) == []
    assert "paused" in ctl("daemon", "pause").stdout
    assert "daemon pause" in ctl("audit").stdout
    again = login(https, "--fingerprint", https.fingerprint, "--name", "again")
    assert again.exit_code == 0
    assert ctl("contexts").stdout.splitlines() == [
        "  socket  the Unix socket",
        f"  127.0.0.1  https://127.0.0.1:{https.port}  ann",
        f"* again  https://127.0.0.1:{https.port}  ann",
    ]
    assert ctl("contexts", "socket").exit_code == 0
    assert ctl("list").exit_code == 3, "there is no daemon here"
    assert ctl("--context", "again", "list").exit_code == 0
    assert ctl("--context", "none", "list").exit_code == 4
    monkeypatch.setenv("SPOTSUP_SOCKET", "/nothing")
    assert ctl("list").exit_code == 3
    assert ctl("--context", "again", "list").exit_code == 0
    monkeypatch.delenv("SPOTSUP_SOCKET")
    assert ctl("logout").exit_code == 5, "of the socket"
    ctl("contexts", "again")
    assert ctl("logout").stdout == "forgot again\n"
    assert ctl("list").exit_code == 3
    assert ctl("--context", "127.0.0.1", "list").exit_code == 0
    https.tokens = {}
    refused = ctl("--context", "127.0.0.1", "list")
    assert (refused.exit_code, "revoked" in refused.stderr) == (5, True)
    assert TOKEN not in refused.output


def test_the_token_is_not_sent_to_a_daemon_that_is_not_the_expected_one(https: Https) -> None:
    other = fingerprint(trustme.CA().cert_pem.bytes().decode())
    for more, why in (
        (("--fingerprint", other), "somebody may be in between"),
        ((), "Nobody can be asked here: give it as --fingerprint"),
    ):
        refused = login(https, *more)
        assert (refused.exit_code, why in refused.stderr) == (5, True), refused.output
        assert https.fingerprint in refused.stderr
    assert https.authorizations == []
    assert not file_of_user().exists()


def test_another_certificate_under_a_known_address_gets_no_token(https: Https, tmp_path: Path) -> None:
    assert login(https, "--fingerprint", https.fingerprint).exit_code == 0
    with Https.started(tmp_path / "other", port=https.stop()) as impostor:
        refused = ctl("list")
        assert impostor.authorizations == []
    assert (refused.exit_code, "is not trusted" in refused.stderr) == (3, True), refused.output


def test_a_given_ca_is_used_and_names_matter_with_it(https: Https, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(https.ca)
    assert login(https, "--ca", str(tmp_path / "ca.pem")).exit_code == 0
    (tmp_path / "other.pem").write_bytes(trustme.CA().cert_pem.bytes())
    refused = login(https, "--ca", str(tmp_path / "other.pem"))
    assert (refused.exit_code, "is not trusted" in refused.stderr) == (3, True)
    assert login(https, "--ca", str(tmp_path / "none")).exit_code == 2


def test_a_wrong_token_is_not_kept(https: Https) -> None:
    for token, code in (("spotsup_no", 5), ("two words", 2), ("", 2), ("ünicode", 2), (TOKEN[:-1], 5)):
        assert login(https, "--fingerprint", https.fingerprint, token=token).exit_code == code, token
    assert not file_of_user().exists()


def test_it_starts_quickly(https: Https) -> None:
    login(https, "--fingerprint", https.fingerprint)
    began = time.monotonic()
    ctl("contexts")
    assert time.monotonic() - began < 1.0


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_an_address_is_https_and_nothing_but_a_host_and_a_port() -> None:
    assert checked_url("spot.example.org") == "https://spot.example.org:8443"
    assert checked_url("https://[::1]:1/") == "https://[::1]:1"
    for wrong in (
        "http://spot.example.org",
        "https://ann:secret@spot.example.org",
        "https://spot.example.org/path",
        "https://spot.example.org?token=1",
        "https://spot.example.org:99999",
        "https://",
        "file:///etc/passwd",
    ):
        with pytest.raises(UsageError):
            checked_url(wrong)


def test_a_file_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "spotsup/contexts.json"
    assert load(file) == Contexts({})
    kept = Contexts({"a": Context("a", "https://a:1", "ann", TOKEN, "pem", own_ca=True)}, "a")
    save(file, kept)
    assert load(file) == kept
    assert TOKEN not in repr(kept)
    file.chmod(0o640)
    with pytest.raises(CommandRefusedError, match="others can read it"):
        load(file)
    file.chmod(0o600)
    for damaged in ("", "[]", "{}", '{"current": "a", "contexts": {"a": {}}}', '{"current": "a", "contexts": 1}'):
        file.write_text(damaged)
        with pytest.raises(UsageError, match="is damaged"):
            load(file)
    with pytest.raises(NotFoundError, match="socket, a"):
        kept.get("b")


def test_a_ca_is_one_certificate() -> None:
    pem = trustme.CA().cert_pem.bytes().decode()
    assert fingerprint(pem).startswith("SHA256:")
    begin, end = "-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n"
    for wrong in ("", "text", pem + pem, f"{begin}!{end}", f"{begin}{end}", f"{begin}AAAA\n{end}"):
        with pytest.raises(UsageError):
            fingerprint(wrong)
