"""GET requests for S3, signed with AWS Signature Version 4 in their headers, as bytes to send.

Source of the rules: the S3 API reference, "Authenticating Requests (AWS Signature Version 4)", which leaves a key's
path as it is (no normalization, each byte outside of the unreserved ones encoded once).

The key that signs depends on the secret, the day and the region alone, and is kept: what is left to do for a request
are one hash and one HMAC of a few hundred bytes.
"""

import hashlib
import hmac
import time
from dataclasses import dataclass, field
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "s3"
_TERMINATOR = "aws4_request"


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Whose request it is. `token`: of temporary credentials."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(slots=True)
class GetSigner:
    """Makes the requests for one host. Thread-safe: what it keeps is replaced as a whole.

    Args:
        host: as the Host header has it, with a port that is not the scheme's own.
        path_prefix: what stands before the encoded key.
        region: that is signed for.
        payload_hash: the value of x-amz-content-sha256.
        unsigned_headers: more header lines, each with its end, not signed.
    """

    host: str
    path_prefix: str
    region: str
    payload_hash: str
    unsigned_headers: str = ""
    _kept: tuple[tuple[SigningKeys, str], bytes] | None = field(default=None, repr=False)

    def request(self, key: str, byte_range: str, keys: SigningKeys | None, now_s: float) -> bytes:
        """The whole request.

        Args:
            byte_range: the value of the Range header.
            keys: None: an anonymous request, not signed.
            now_s: seconds since the epoch.

        Raises:
            ValueError: the keys hold what no header can.
        """
        path = self.path_prefix + quote(key, safe="/-._~")
        headers = f"host:{self.host}\nrange:{byte_range}\n"
        if keys is not None:
            moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
            headers += f"x-amz-content-sha256:{self.payload_hash}\nx-amz-date:{moment}\n"
            names = "host;range;x-amz-content-sha256;x-amz-date"
            if keys.token:
                headers += f"x-amz-security-token:{keys.token}\n"
                names += ";x-amz-security-token"
            headers += f"authorization:{self._authorization(path, headers, names, keys, moment)}\n"
        lines = headers.replace("\n", "\r\n")
        return f"GET {path} HTTP/1.1\r\n{lines}{self.unsigned_headers}\r\n".encode("ascii")

    def _authorization(self, path: str, headers: str, names: str, keys: SigningKeys, moment: str) -> str:
        # `headers` are in the form that is signed, in ascending order of their names.
        signing_key = self._signing_key(keys, moment[:8])
        canonical = f"GET\n{path}\n\n{headers}\n{names}\n{self.payload_hash}"
        scope = f"{moment[:8]}/{self.region}/{SERVICE}/{_TERMINATOR}"
        to_sign = f"{ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(signing_key, to_sign.encode(), "sha256").hex()
        return f"{ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"

    def _signing_key(self, keys: SigningKeys, day: str) -> bytes:
        kept, identity = self._kept, (keys, day)
        if kept is not None and kept[0] == identity:
            return kept[1]
        for text in (keys.access_key, keys.token or ""):
            if not (text.isascii() and text.isprintable()):
                raise ValueError("credentials with characters that no header can hold")
        signing_key = f"AWS4{keys.secret_key}".encode()
        for part in (day, self.region, SERVICE, _TERMINATOR):
            signing_key = hmac.digest(signing_key, part.encode(), "sha256")
        self._kept = (identity, signing_key)
        return signing_key
