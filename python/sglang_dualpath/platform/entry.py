"""The entry point of the group `sglang.srt.platforms`: whether this machine is to be served by its CPU."""

import os

VARIABLE = "SGLANG_DUALPATH_PLATFORM"
"""`cpu` takes the CPU even beside an accelerator, `off` never takes it."""

PLATFORM_CLASS = "sglang_dualpath.platform.cpu.PlainCpuPlatform"


def activate() -> str | None:
    """The platform's class path where no accelerator is usable or the CPU is asked for; else None (upstream decides).

    Raises SystemExit for a value of the variable that means nothing, and when the platform itself cannot be imported:
    upstream would only log either.
    """
    wish = os.environ.get(VARIABLE, "auto")
    if wish not in ("auto", "cpu", "off"):
        raise SystemExit(f"{VARIABLE}={wish!r} means nothing; use cpu, off or auto")
    # Upstream's own CPU engine is another platform, asked for explicitly.
    if wish == "off" or (
        wish == "auto" and (_is_accelerator_usable() or os.environ.get("SGLANG_USE_CPU_ENGINE") == "1")
    ):
        return None
    try:
        import sglang_dualpath.platform.cpu  # noqa: F401  # imported to fail here, with a message, if it must
    except Exception as error:
        raise SystemExit(f"sglang-dualpath: the CPU platform cannot be imported: {error}") from error
    return PLATFORM_CLASS


def is_active() -> bool:
    """Whether this process is served by this platform (and not by an accelerator's, or upstream's own CPU engine)."""
    from sglang.srt.platforms import current_platform

    return f"{type(current_platform).__module__}.{type(current_platform).__qualname__}" == PLATFORM_CLASS


def _is_accelerator_usable() -> bool:
    import torch

    if torch.cuda.is_available() or torch.xpu.is_available():
        return True
    if getattr(torch.version, "musa", None) is not None:
        return True
    if hasattr(torch, "npu") and torch.npu.is_available():
        return True
    return bool(getattr(torch, "mps", None) is not None and torch.mps.is_available())
