"""Property tests here are about values, never about time; and a test that runs upstream in-process changes nothing for
the next ones."""

import logging

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
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
