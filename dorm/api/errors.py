"""Errors of the API, besides those of the packages below it.  `dorm.api.responses` turns all of them into documents.

ApiError
├── Malformed        400  the request cannot be read
├── Unauthorized     401  it does not prove who makes it
├── Forbidden        403  it is understood and refused
├── Missing          404  there is no such thing
├── NotAllowed       405  the path exists and not with this method
├── NotAcceptable    406  no form of the answer that the client accepts
├── TooSlow          408  the request did not arrive in time
├── TooLarge         413  more than the API takes
├── Unsupported      415  a body of another type
├── Misdirected      421  it names another host
├── Invalid          422  it can be read and not done
├── TooMany          429  one address asks for too much at once
├── Unavailable      503  not now
└── CannotListen          the server cannot have its address
"""

from __future__ import annotations

from events.errors import DormError


class ApiError(DormError):
    """Base class; `status` is that of the answer."""

    code = "api.failed"
    status = 500


class Malformed(ApiError):
    """The request cannot be read."""

    code = "api.request.malformed"
    status = 400


class Unauthorized(ApiError):
    """The request does not prove who makes it."""

    code = "api.unauthorized"
    status = 401


class Forbidden(ApiError):
    """The request is refused."""

    code = "api.forbidden"
    status = 403


class Missing(ApiError):
    """There is no such thing."""

    code = "api.not_found"
    status = 404


class NotAllowed(ApiError):
    """The path does not have this method."""

    code = "api.method_not_allowed"
    status = 405


class NotAcceptable(ApiError):
    """The answer has no form that the client accepts."""

    code = "api.not_acceptable"
    status = 406


class TooSlow(ApiError):
    """The request did not arrive in time."""

    code = "api.request.too_slow"
    status = 408


class TooLarge(ApiError):
    """The request is larger than the API takes."""

    code = "api.request.too_large"
    status = 413


class Unsupported(ApiError):
    """The body is of a type that this route does not take."""

    code = "api.body.unsupported"
    status = 415


class Misdirected(ApiError):
    """The request names a host that this API does not answer for."""

    code = "api.host.unknown"
    status = 421


class Invalid(ApiError):
    """The request can be read and not done."""

    code = "api.request.invalid"
    status = 422


class TooMany(ApiError):
    """One address asks for too much at once."""

    code = "api.too_many"
    status = 429


class Unavailable(ApiError):
    """The API cannot answer now."""

    code = "api.unavailable"
    status = 503


class CannotListen(ApiError):
    """The server cannot have its address."""

    code = "api.listen.failed"
