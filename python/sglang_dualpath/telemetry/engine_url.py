"""What a URL must be like for requests to be sent there."""

from urllib.parse import urlsplit


def check_engine_url(url: str) -> None:
    """Raises ValueError for what is no `http://HOST:PORT`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # As name look-up encodes it; there the error would come in the midst of serving.
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise ValueError(f"url {url!r}: {error}") from None
    if not usable or parts.query or parts.fragment:
        raise ValueError(f"url {url!r} is not one such as http://10.0.0.1:30000")
