"""Names of blocks: a chain of digests over the namespace, the tenant and every token up to the block's end."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sglang_dualpath.blocks.geometry import BlockGeometry

BlockKey = bytes
"""32 bytes that name one block."""

KEY_BYTES = 32

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
_SAMPLES_A_FILE = 64
_SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class BlockNamespace:
    """Everything that must agree for two engines to share a block: no cross-model and no cross-rank hit."""

    model: str
    weights_revision: str
    kv_dtype: str
    geometry: BlockGeometry
    kind: str
    tp_rank: int
    tp_size: int

    @property
    def digest(self) -> bytes:
        """32 bytes over all fields, each delimited by its length."""
        geometry = self.geometry
        fields = (
            self.model,
            self.weights_revision,
            self.kv_dtype,
            self.kind,
            *(str(n) for n in (geometry.n_layers, geometry.token_bytes, geometry.block_tokens)),
            str(self.tp_rank),
            str(self.tp_size),
        )
        state = hashlib.blake2b(digest_size=KEY_BYTES, person=b"dualpath-names")
        for text in fields:
            _update_delimited(state, text.encode())
        return state.digest()

    @property
    def hex(self) -> str:
        """The digest as text, safe in a path."""
        return self.digest.hex()


class BlockKeyChain:
    """Keys of a growing token sequence: key i covers the namespace, `extra_key` and tokens [0, 64 * (i + 1))."""

    def __init__(self, namespace: BlockNamespace, extra_key: str | None = None) -> None:
        self.namespace = namespace
        self._block_tokens = namespace.geometry.block_tokens
        state = hashlib.blake2b(digest_size=KEY_BYTES, person=b"dualpath-root")
        state.update(namespace.digest)
        _update_delimited(state, b"" if extra_key is None else b"\x01" + extra_key.encode(errors="surrogatepass"))
        self._last = state.digest()
        self._tail = np.empty(0, dtype=np.int64)
        self.keys: list[BlockKey] = []

    @property
    def n_tokens(self) -> int:
        """Tokens seen so far."""
        return len(self.keys) * self._block_tokens + len(self._tail)

    def extend(self, token_ids: Sequence[int] | np.ndarray) -> list[BlockKey]:
        """Append tokens; returns the keys of the blocks they completed, in order."""
        tokens = np.concatenate([self._tail, np.asarray(token_ids, dtype=np.int64)])
        n_new = len(tokens) // self._block_tokens
        new = [self._next(tokens[i * self._block_tokens : (i + 1) * self._block_tokens]) for i in range(n_new)]
        self._tail = tokens[n_new * self._block_tokens :]
        self.keys.extend(new)
        return new

    def _next(self, block: np.ndarray) -> BlockKey:
        state = hashlib.blake2b(self._last, digest_size=KEY_BYTES, person=b"dualpath-block")
        state.update(block.astype("<i8").tobytes())
        self._last = state.digest()
        return self._last


def weights_revision(model_path: str) -> str:
    """A digest of the weights in a checkpoint directory: config, and each weight file's name, size and samples of content.

    Equal files give equal revisions on every node; samples are the head and evenly spaced pages, so that fine-tunes of
    one architecture differ. A path that is no local directory (a hub name) stands for itself.
    """
    root = Path(model_path)
    if not root.is_dir():
        return "name:" + model_path
    state = hashlib.blake2b(digest_size=16)
    config = root / "config.json"
    _update_delimited(state, config.read_bytes() if config.is_file() else b"")
    for file in sorted(file for file in root.iterdir() if file.suffix in _WEIGHT_SUFFIXES):
        size = file.stat().st_size
        _update_delimited(state, file.name.encode())
        _update_delimited(state, str(size).encode())
        with file.open("rb") as stream:
            for i in range(_SAMPLES_A_FILE):
                stream.seek(i * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES_A_FILE - 1), os.SEEK_SET)
                state.update(stream.read(_SAMPLE_BYTES))
    return state.hexdigest()


def _update_delimited(state: "hashlib.blake2b", part: bytes) -> None:
    state.update(len(part).to_bytes(8, "little"))
    state.update(part)
