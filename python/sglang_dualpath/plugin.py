"""The entry point of the `sglang.srt.plugins` group; the one file that names upstream hook targets."""


def load() -> None:
    """Attach to upstream; called once in every SGLang process (upstream `sglang.srt.plugins.load_plugins`)."""
