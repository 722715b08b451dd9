"""Whether DualPath is on in this process, and with which settings.

The launcher puts them into its environment, which its child processes inherit: upstream loads plugins in a child before
the plugin can see the server arguments, and without `--kv-path` no engine hook may be registered at all.
"""

import os

import msgspec

from sglang_dualpath.config import DualPathConfig

VARIABLE = "SGLANG_DUALPATH_SETTINGS"


def activate(config: DualPathConfig | None) -> None:
    """Turn DualPath on for this process and its children, or off."""
    if config is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = msgspec.json.encode(config).decode()


def is_active() -> bool:
    """Whether `--kv-path` was given."""
    return VARIABLE in os.environ


def active_config() -> DualPathConfig:
    """The settings. Raises RuntimeError where `--kv-path` was not given."""
    text = os.environ.get(VARIABLE)
    if text is None:
        raise RuntimeError("DualPath is not active in this process")
    return msgspec.json.decode(text, type=DualPathConfig)
