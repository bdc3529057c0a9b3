"""The CA and etcd's certificate: what they say, when they are renewed, and what a crash leaves."""

from __future__ import annotations

import datetime as dt
import ipaddress
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from supervisor.errors import StartError
from supervisor.journal.certificates import CERTIFICATE_DAYS, RENEW_BEFORE_DAYS, TlsFiles, ensure_certificates

NOW = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path / "tls")


def later(days: float) -> dt.datetime:
    return NOW + dt.timedelta(days=days)


def cert(files: TlsFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.cert.read_bytes())


def test_what_is_made(files: TlsFiles) -> None:
    done = ensure_certificates(files, ("etcd.example", "10.0.0.5", "127.0.0.1"), NOW)
    assert done == (
        "made a CA and a certificate for localhost, 127.0.0.1, ::1, etcd.example, 10.0.0.5, valid until 2027-11-22"
    )
    made, ca = cert(files), x509.load_pem_x509_certificate(files.ca.read_bytes())
    made.verify_directly_issued_by(ca)
    # etcd takes a common name for a user's, and its gateway shows this certificate to etcd.
    assert not made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    uses = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ipaddress.ip_address("10.0.0.5") in names.get_values_for_type(x509.IPAddress)
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "etcd.example"]
    for secret in (files.key, files.ca_key):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    # A node whose clock is behind.
    assert made.not_valid_before_utc <= NOW - dt.timedelta(hours=23)


def test_a_certificate_is_renewed_in_time_under_the_same_ca_and_key(files: TlsFiles) -> None:
    ensure_certificates(files, (), NOW)
    ca, key, before = files.ca.read_bytes(), files.key.read_bytes(), cert(files)
    assert not ensure_certificates(files, (), later(CERTIFICATE_DAYS - RENEW_BEFORE_DAYS - 1))
    assert "made a certificate" in ensure_certificates(files, (), later(CERTIFICATE_DAYS - RENEW_BEFORE_DAYS + 1))
    assert (files.ca.read_bytes(), files.key.read_bytes()) == (ca, key)
    assert cert(files).not_valid_after_utc > before.not_valid_after_utc


def test_a_further_name_renews_it_and_fewer_names_do_not(files: TlsFiles) -> None:
    ensure_certificates(files, ("one",), NOW)
    assert ensure_certificates(files, ("one", "two"), NOW)
    assert not ensure_certificates(files, ("two",), NOW)


def test_a_clock_that_was_ahead_when_it_was_made_is_noticed(files: TlsFiles) -> None:
    ensure_certificates(files, (), later(100))
    assert ensure_certificates(files, (), later(100)) == ""
    assert "made a certificate" in ensure_certificates(files, (), NOW)


@pytest.mark.parametrize("written", range(1, 5))
def test_a_crash_between_any_two_files_is_gone_after_the_next_call(files: TlsFiles, written: int) -> None:
    ensure_certificates(files, (), NOW)
    for path in [files.ca_key, files.ca, files.key, files.cert][written:]:
        path.unlink()
    kept = [path.read_bytes() for path in (files.ca_key, files.ca, files.key) if path.exists()]
    ensure_certificates(files, (), NOW)
    cert(files).verify_directly_issued_by(x509.load_pem_x509_certificate(files.ca.read_bytes()))
    assert [path.read_bytes() for path in (files.ca_key, files.ca, files.key)][: len(kept)] == kept
    assert ensure_certificates(files, (), NOW) == ""


def test_what_cannot_be_used_is_named_with_its_remedy(files: TlsFiles, tmp_path: Path) -> None:
    ensure_certificates(files, (), NOW)
    with pytest.raises(StartError, match=r"the CA in .* ended on 2036-\d\d-\d\d: end all jobs, delete"):
        ensure_certificates(files, (), later(3651))
    whole = files.cert.read_bytes()
    files.cert.write_bytes(whole[:100])
    with pytest.raises(StartError, match=r"a certificate or key in .*tls is damaged .*restore it"):
        ensure_certificates(files, (), NOW)
    files.cert.write_bytes(whole)
    other = TlsFiles(tmp_path / "other")
    ensure_certificates(other, (), NOW)
    files.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(StartError, match=r"ca\.key is not the key of ca\.crt"):
        ensure_certificates(files, (), NOW)
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"cannot be kept in .*file/tls: Not a directory"):
        ensure_certificates(TlsFiles(tmp_path / "file" / "tls"), (), NOW)
