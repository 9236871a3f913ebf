"""A cluster's own certificate authority, and the certificates of its NATS servers.

Clients trust this authority alone, whose certificate is in their credentials.  It only signs servers' certificates: people and
nodes prove their identities by nkeys, which the configuration names.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dorm.security.files import SecurityError

if TYPE_CHECKING:
    from collections.abc import Iterable

_AUTHORITY_DAYS = 3650
_SERVER_DAYS = 825
"""The longest validity of a server's certificate that common clients accept."""
_EARLIER = timedelta(hours=1)
"""A machine whose clock is behind this one's must be able to use a new certificate."""


def new_authority(cluster: str, now: int) -> tuple[bytes, bytes]:
    """Return certificate and key of a new authority, in PEM.  `now` is UTC ns."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Dorm cluster {cluster}"[:64])])
    certificate = (
        _begun(name, name, key.public_key(), now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def server_certificate(
    authority: bytes, authority_key: bytes, hosts: Iterable[str], now: int, *, routes: bool = False
) -> tuple[bytes, bytes]:
    """Return certificate and key of a server with these names and addresses, in PEM.  `routes`: the server also connects to
    other servers, and proves its identity to them.  Raises SecurityError."""
    try:
        issuer = x509.load_pem_x509_certificate(authority)
        signer = serialization.load_pem_private_key(authority_key, None)
    except ValueError:
        raise SecurityError(
            "the certificate authority can't be read; restore ca.pem and ca.key from a backup, or remove both for a new one",
            code="security.authority_unreadable",
        ) from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise SecurityError("ca.key is not the key of ca.pem", code="security.authority_unreadable")
    key = ec.generate_private_key(ec.SECP256R1())
    names = list(dict.fromkeys(hosts))
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if routes else [])]
    certificate = (
        _begun(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Dorm NATS server")]),
            issuer.subject,
            key.public_key(),
            now,
            _SERVER_DAYS,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)  # type: ignore[arg-type]
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


class Validity(NamedTuple):
    """From when to when a certificate counts, UTC ns."""

    begins: int
    ends: int


def validity_of(certificate: bytes) -> Validity:
    """Return the validity of a certificate in PEM or DER; of several, of the one that ends first.  Raises SecurityError."""
    try:
        pem = b"-----BEGIN" in certificate
        certificates = (
            x509.load_pem_x509_certificates(certificate) if pem else [x509.load_der_x509_certificate(certificate)]
        )
    except ValueError:
        raise SecurityError("this is not a certificate", code="security.certificate_unreadable") from None
    first = min(certificates, key=lambda each: each.not_valid_after_utc)
    return Validity(_ns(first.not_valid_before_utc), _ns(first.not_valid_after_utc))


def _ns(when: datetime) -> int:
    return int((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 10**9


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 of a certificate in PEM, in the form in which people compare it.  Raises SecurityError."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError:
        raise SecurityError("this is not a certificate", code="security.authority_unreadable") from None
    return hashlib.sha256(parsed.public_bytes(serialization.Encoding.DER)).hexdigest()


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: int, days: int
) -> x509.CertificateBuilder:
    moment = datetime.fromtimestamp(now // 10**9, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _EARLIER)
        .not_valid_after(moment + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise SecurityError(
            f"{host[:80]!r} is neither a name nor an address of a machine", code="security.host"
        ) from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
