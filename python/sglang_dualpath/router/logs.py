"""The router's log lines: for people, or one JSON object each."""

import contextvars
import json
import logging

request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)
"""Of the request that the running task serves."""


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message", "request_id"?, "exception"?}`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (of := request_id.get()) is not None:
            line["request_id"] = of
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(level: str, as_json: bool) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
