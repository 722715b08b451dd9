"""Property tests here are about values, never about time; and a test that runs upstream in-process changes nothing for
the next ones."""

import logging
import os

import pytest
from hypothesis import settings

SAME_EXAMPLES = os.environ.get("DUALPATH_SAME_EXAMPLES") == "1"
"""In CI: a change is judged by the same examples as the one before it; elsewhere new ones are tried each time."""

settings.register_profile("untimed", deadline=None, derandomize=SAME_EXAMPLES)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _logging_as_it_starts() -> None:
    """Warnings of ours reach `caplog`, whatever level or switch an upstream engine has left behind in this process."""
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("sglang_dualpath") and isinstance(logger, logging.Logger):
            logger.disabled = False
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
