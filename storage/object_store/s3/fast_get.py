"""A client's GETs past most of boto3: signed and sent by our own code, which takes 0.1 ms of processor time where boto3
takes 2, under the interpreter's lock.

What is not ours stays boto3's, which is asked:

- *Whom to ask, and how.* One GetObject is prepared by boto3 and not sent. Its URL, region, signature and headers say
  how it addresses and signs this bucket (`_learn_route`). Where they are not of the kind that is known here, all GETs
  are boto3's.
- *Credentials*: the client's own, asked for each request, since they change.
- *Connections* are opened by boto3's connection classes, with its time-outs, certificates and socket options.
- *Answers* other than 200 and 206 in their plain form are given to a GetObject of boto3 as the answer to its request,
  without another being sent: errors, redirects, regions, retries and clocks are judged by it. Where it then got the
  object by a request of its own, the route is learnt again.
"""

import http.client
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storage.object_store.http.get import Answer, ConnectionPool, OpenSockets, parsed
from storage.object_store.s3.signed_get import ALGORITHM, SERVICE, GetSigner, SigningKeys

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef


REPLAYED_BYTES_MAX = 64 * 1024
"""An error's body of at most this size is received whole, so that its connection serves another GET."""

_PROBE_KEY = "k"
_SENT_AS_THEY_ARE = frozenset({"user-agent"})
_OURS = frozenset({"range", "authorization", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"})
_LEFT_OUT = frozenset({"amz-sdk-invocation-id", "amz-sdk-request", "accept-encoding", "host"})
"""botocore's account of its own retries; what http.client adds by itself."""


@dataclass(frozen=True, slots=True)
class _Route:
    """How GETs reach the bucket."""

    url: str
    signer: GetSigner
    is_anonymous: bool
    pool: ConnectionPool


class FastGets:
    """GETs of one bucket through one client of boto3. Thread-safe.

    Args:
        timeout_s: how long an answer is waited for.
        idle_max: how many connections are kept open for the next GET.
    """

    def __init__(
        self, client: "S3Client", sockets: OpenSockets, bucket: str, *, timeout_s: float, idle_max: int
    ) -> None:
        self.boto3_client: Any = client
        self._sockets = sockets
        self._bucket = bucket
        self._timeout_s = timeout_s
        self._idle_max = idle_max
        self._route: _Route | None = None
        self._is_learnt = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._handed = _Handed()
        client.meta.events.register("before-send.s3.GetObject", self._answer_instead)

    def begin(self, key: str, byte_range: str) -> Answer | None:
        """Send a GET and wait for its answer's head, whatever that is; None: this GET has to be boto3's.

        Raises:
            Exception: of botocore's kinds, as its own GetObject.
        """
        route = self._route if self._is_learnt else self.learn()
        if route is None:
            return None
        keys = None if route.is_anonymous else self.signing_keys()
        if keys is None and not route.is_anonymous:
            return None
        try:
            request = route.signer.request(key, byte_range, keys, time.time())
        except ValueError:
            return None  # boto3 has its own words for a key or for credentials that cannot be sent
        return _asked(route, request, self._timeout_s)

    def get_object(self, key: str, byte_range: str, answer: Answer | None) -> "GetObjectOutputTypeDef":
        """GetObject of boto3, which takes `answer` for that of its first request.

        Raises:
            Exception: as boto3 does.
        """
        taken: list[int] = []

        def give(request: Any) -> Any:
            if answer is None:
                return None
            response = _as_botocores(answer, request)
            taken.append(response.status_code)
            return response

        self._handed.give = give
        try:
            found: GetObjectOutputTypeDef = self.boto3_client.get_object(Bucket=self._bucket, Key=key, Range=byte_range)
        finally:
            self._handed.give = None
            if answer is not None and not taken:
                answer.give_up()
        if taken:
            self._learn_again(is_unknown_form=taken[0] in (200, 206))
        return found

    def close(self) -> None:
        """Close the idle connections, and each of the others as soon as its answer ends."""
        # Without the lock: who holds it may be waiting for credentials.
        self._is_closed = True
        route = self._route
        if route is not None:
            route.pool.close()

    def learn(self) -> _Route | None:
        """Return where GETs go, found out once; None: boto3 has to send them."""
        with self._lock:
            if not self._is_learnt:
                route = self._route = self._learn_route()
                self._is_learnt = True
                if route is not None and self._is_closed:
                    route.pool.close()
            return self._route

    def _learn_again(self, *, is_unknown_form: bool) -> None:
        """boto3 got an object where we did not: by another way to it, or in a form of body that is not known here. In
        that form its next answers will be, too, so that all GETs are boto3's from now on."""
        with self._lock:
            if self._route is not None:
                self._route.pool.close()
            self._route = None
            self._is_learnt = is_unknown_form

    def _learn_route(self) -> _Route | None:
        """The one place that decides whether GETs are sent from here. They are not, if

        - boto3 signs in another way than with AWS Signature Version 4 for one region, or adds headers that are not
          known here: checksums of answers are demanded, or it is a directory bucket, or a region set signs;
        - a proxy is between, or a certificate of our own is shown;
        - this version of botocore has other inner parts.
        """
        from botocore import UNSIGNED

        request = self._prepared()
        url = urlsplit(request.url)
        headers = {str(name).lower(): _text(value) for name, value in request.headers.items()}
        if url.query or not url.path.endswith(f"/{_PROBE_KEY}") or set(headers) - _SENT_AS_THEY_ARE - _OURS - _LEFT_OUT:
            return None
        is_anonymous = self.boto3_client.meta.config.signature_version is UNSIGNED
        region = "" if is_anonymous else _signed_region(headers.get("authorization", ""))
        open_socket = self._socket_opener(request.url)
        if region is None or open_socket is None:
            return None
        signer = GetSigner(
            host=_host(request.url),
            path_prefix=url.path[: -len(_PROBE_KEY)],
            region=region,
            payload_hash=headers.get("x-amz-content-sha256", ""),
            unsigned_headers="accept-encoding:identity\r\n"
            + "".join(f"{name}:{headers[name]}\r\n" for name in sorted(_SENT_AS_THEY_ARE & set(headers))),
        )
        return _Route(request.url, signer, is_anonymous, ConnectionPool(open_socket, idle_max=self._idle_max))

    def _prepared(self) -> Any:
        """The request that boto3 would send, signed."""
        from botocore.awsrequest import AWSResponse
        from botocore.compat import HTTPHeaders
        from urllib3 import HTTPResponse

        found: list[Any] = []

        def keep(request: Any) -> Any:
            found.append(request)
            return AWSResponse(request.url, 200, HTTPHeaders(), HTTPResponse(b""))

        self._handed.give = keep
        try:
            self.boto3_client.get_object(Bucket=self._bucket, Key=_PROBE_KEY, Range="bytes=0-0")
        finally:
            self._handed.give = None
        return found[0]

    def _answer_instead(self, request: Any, **_: Any) -> Any:
        """botocore's event before it sends: what is returned is taken for the answer, None lets it send."""
        give, self._handed.give = self._handed.give, None
        return None if give is None else give(request)

    def signing_keys(self) -> SigningKeys | None:
        """boto3's credentials of this moment; None: there are none."""
        credentials = self.boto3_client._get_credentials()
        if credentials is None:
            return None
        frozen = credentials.get_frozen_credentials()
        return SigningKeys(frozen.access_key, frozen.secret_key, frozen.token)

    def _socket_opener(self, url: str) -> Callable[[], Any] | None:
        try:
            session = self.boto3_client._endpoint.http_session
            if session._proxy_config.proxy_url_for(url) is not None or session._cert_file is not None:
                return None
            pool = session._manager.connection_from_url(url)
            session._setup_ssl_cert(pool, url, session._verify)
            connection_of = pool._new_conn
        except AttributeError:
            return None

        def open_socket() -> Any:
            connection = connection_of()
            return self._sockets.connected(connection, connection.connect)

        return open_socket


class _Handed(threading.local):
    """What answers this thread's next request in place of the store."""

    give: Callable[[Any], Any] | None = None


def _asked(route: _Route, request: bytes, timeout_s: float) -> Answer:
    """The answer; errors as URLLib3Session.send of botocore has them."""
    from botocore import exceptions
    from urllib3 import exceptions as urllib3

    try:
        return route.pool.get(request, timeout_s)
    except urllib3.NewConnectionError as error:
        raise exceptions.EndpointConnectionError(endpoint_url=route.url, error=error) from error
    except urllib3.ConnectTimeoutError as error:
        raise exceptions.ConnectTimeoutError(endpoint_url=route.url, error=error) from error
    except (ssl.SSLError, urllib3.SSLError) as error:
        raise exceptions.SSLError(endpoint_url=route.url, error=error) from error
    except (TimeoutError, urllib3.ReadTimeoutError) as error:
        raise exceptions.ReadTimeoutError(endpoint_url=route.url, error=error) from error
    except OSError as error:
        raise exceptions.ConnectionClosedError(endpoint_url=route.url, error=error) from error


def _as_botocores(answer: Answer, request: Any) -> Any:
    """An answer of ours as botocore has those that it received by itself."""
    from botocore import exceptions
    from botocore.awsrequest import AWSResponse
    from urllib3 import HTTPHeaderDict, HTTPResponse

    try:
        response = parsed(answer, REPLAYED_BYTES_MAX)
    except TimeoutError as error:
        answer.give_up()
        raise exceptions.ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except (OSError, http.client.HTTPException) as error:
        answer.give_up()
        raise exceptions.ConnectionClosedError(endpoint_url=request.url, error=error) from error
    raw: Any = HTTPResponse(
        body=response,
        headers=HTTPHeaderDict(response.msg.items()),
        status=response.status,
        version=response.version,
        reason=response.reason,
        preload_content=False,
        decode_content=False,
        enforce_content_length=False,
        original_response=response,
        request_method="GET",
    )
    return AWSResponse(request.url, raw.status, raw.headers, raw)


def _signed_region(authorization: str) -> str | None:
    """Return the region in a header Authorization; None: it is not of the kind that is known here."""
    kind, _, rest = authorization.partition(" Credential=")
    scope = rest.partition(",")[0].split("/")
    return scope[-3] if kind == ALGORITHM and scope[-2:] == [SERVICE, "aws4_request"] and len(scope) >= 5 else None


def _host(url: str) -> str:
    """The Host header: without the port that the scheme has anyway."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port in (None, {"http": 80, "https": 443}.get(parts.scheme)) else f"{host}:{parts.port}"


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
