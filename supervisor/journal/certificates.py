"""The private CA and etcd's certificate: made once, renewed in place. Nodes trust the CA, so a renewal stops no job."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from supervisor.errors import StartError
from supervisor.files import replace_file

CA_DAYS = 3650
CERTIFICATE_DAYS = 365
RENEW_BEFORE_DAYS = 120
# A node's clock may be behind by this much when it sees a new certificate.
BACKDATED = dt.timedelta(days=1)
# The daemon beside etcd, and what comes through a tunnel (`reach: ssh`), use these.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths below one folder. etcd reads certificate and key anew at each handshake (Go's GetCertificate, as set in
    etcd's pkg/transport/listener.go)."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Return what nodes and the daemon trust: the CA that signs, and another one while a person replaces it."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """Signs certificates; etcd never reads it."""
        return self.folder / "ca.key"

    @property
    def cert(self) -> Path:
        """etcd's own."""
        return self.folder / "etcd.crt"

    @property
    def key(self) -> Path:
        """Return the key of `cert`. It stays at a renewal, so that no handshake finds a pair that does not fit."""
        return self.folder / "etcd.key"


def ensure_certificates(files: TlsFiles, names: Sequence[str], now: dt.datetime) -> str:
    """Make what is missing, and renew etcd's certificate where it ends soon or lacks one of `names` (DNS names and
    addresses). Returns what was done, "" for nothing. Raises StartError.

    Each file appears complete, keys before what they sign: after a crash the next call goes on.
    """
    wanted = tuple(dict.fromkeys([*LOOPBACK, *names]))
    try:
        files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca_key, ca, made_ca = _ca(files, now)
        own_key = key_in(files.key)
        known = _read(files.cert)
        if known is not None and not _is_stale(known, wanted, ca, own_key, now):
            return ""
        built = server_certificate(wanted, own_key, ca, ca_key, now)
        replace_file(files.cert, built.public_bytes(Encoding.PEM))
    except OSError as error:
        raise StartError(f"etcd's certificates cannot be kept in {files.folder}: {error.strerror}") from error
    except ValueError as error:
        raise StartError(
            f"a certificate or key in {files.folder} is damaged ({error}): restore it; without a copy, end all jobs "
            "and delete the folder"
        ) from error
    until = f"{built.not_valid_after_utc:%Y-%m-%d}"
    return f"made {'a CA and ' if made_ca else ''}a certificate for {', '.join(wanted)}, valid until {until}"


def _ca(files: TlsFiles, now: dt.datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, bool]:
    key = key_in(files.ca_key)
    trusted = certificates_in(files.ca)
    if trusted:
        found = next((each for each in trusted if each.public_key() == key.public_key()), None)
        if found is None:
            raise ValueError(f"{files.ca_key.name} is not the key of {files.ca.name}")
        if found.not_valid_after_utc <= now:
            raise StartError(
                f"the CA in {files.ca} ended on {found.not_valid_after_utc:%Y-%m-%d}: end all jobs, delete "
                f"{files.folder}, and start again"
            )
        return key, found, False
    built = _new_ca(key, now)
    replace_file(files.ca, built.public_bytes(Encoding.PEM))
    return key, built, True


def _new_ca(key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> x509.Certificate:
    # All have one name: certificates say by a key's identifier which of them signed.
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "spotsup: CA of etcd")])
    return (
        _builder(name, name, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def server_certificate(
    names: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
) -> x509.Certificate:
    """No common name: etcd's gateway connects to etcd with this certificate, and etcd would take a name for a user's
    and refuse all that the gateway brings ("CommonName of client sending a request against gateway will be ignored",
    etcd's server/auth/store.go). For the same reason it is for clients, too."""
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "spotsup: etcd")])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(subject, ca.subject, key, now, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_stale(
    known: x509.Certificate,
    wanted: Sequence[str],
    ca: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
) -> bool:
    named = set(known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    return (
        known.not_valid_after_utc - now < dt.timedelta(days=RENEW_BEFORE_DAYS)
        or known.not_valid_before_utc > now
        or not {_general(name) for name in wanted} <= named
        or known.public_key() != key.public_key()
        or not _is_signed_by(known, ca)
    )


def _is_signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses that it is for."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(each.value) for each in found)


def certificates_in(path: Path) -> list[x509.Certificate]:
    """Return all certificates in a file, none if there is no file. Raises ValueError if one is damaged; OSError."""
    return x509.load_pem_x509_certificates(path.read_bytes()) if path.exists() else []


def key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a file, made if there is none."""
    if path.exists():
        found = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{path.name} is not an elliptic-curve key")
        return found
    made = ec.generate_private_key(ec.SECP256R1())
    replace_file(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    return made


def _read(path: Path) -> x509.Certificate | None:
    return x509.load_pem_x509_certificate(path.read_bytes()) if path.exists() else None
