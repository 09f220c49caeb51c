"""Convert a checkpoint: the publisher's float32 file, or a folder in the published layout, to the published layout.

Tensor by tensor: what is in memory at one time is one tensor of the source and what becomes of it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from voicechat_mlx.convert.card import model_card
from voicechat_mlx.convert.folder import ResultFolder
from voicechat_mlx.convert.plan import Options, Plan, fingerprint, make_plan
from voicechat_mlx.convert.source import open_source
from voicechat_mlx.convert.writing import write_shard
from voicechat_mlx.errors import CheckpointError, VoiceChatError
from voicechat_mlx.memory import in_words

__all__ = ["Options", "Plan", "convert", "plan_conversion"]

MAX_SHARD_BYTES = 4_990_000_000
"""Of numbers; the header of a file takes well below the 10 MB that remain to 5 GB."""
Progress = Callable[[int, int], None]
logger = logging.getLogger(__name__)


def plan_conversion(
    source: str | os.PathLike[str],
    options: Options,
    tokenizer: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Plan:
    """What `convert` would write. Raises CheckpointError or ConfigError for a source that cannot be converted."""
    return make_plan(open_source(source, tokenizer), options, max_shard_bytes)


def convert(plan: Plan, out: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Write the folder `out` → its path. `progress` is told (bytes written, bytes in all).

    A complete earlier conversion at `out` is replaced once the new one is whole; anything else there is refused with
    OutputError. After an interruption the same call goes on with the first shard that is not finished.
    """
    folder = ResultFolder(out)
    folder.check(plan.source.checkpoint.folder)
    try:
        _write(plan, folder, progress)
    except CheckpointError:
        folder.discard()  # a damaged source would be damaged the next time too
        raise
    except OSError as error:
        reason = error.strerror or error
        raise VoiceChatError(f"{folder.place} was not written ({reason}); the same call goes on with it") from error
    return folder.place


def _write(plan: Plan, folder: ResultFolder, progress: Progress | None) -> None:
    """Shards that are not finished yet, then the small files."""
    finished = folder.begin(fingerprint(plan))
    left = [shard for shard in plan.shards if shard.file not in finished]
    if finished:
        logger.warning("taking up an interrupted conversion: %d of %d files are done", len(finished), len(plan.shards))
    to_write = sum(shard.bytes for shard in left)
    folder.require_space(to_write)
    written = plan.bytes - to_write

    def advance(more: int) -> None:
        nonlocal written
        written += more
        if progress:
            progress(written, plan.bytes)

    tensors = plan.source.tensors()
    for shard in left:
        folder.add_shard(shard.file, partial(write_shard, shard, tensors, progress=advance))
        logger.info("%s is written, %s", shard.file, in_words(shard.bytes))
    for file, text in _texts(plan).items():
        folder.add(file, partial(_write_text, text))
    for file, path in plan.source.extras.items():
        folder.add(file, partial(shutil.copyfile, path))
    folder.finish()


def _write_text(text: str, place: Path) -> None:
    place.write_text(text, encoding="utf-8")


def _texts(plan: Plan) -> dict[str, str]:
    """The files that are made, not copied."""
    where = {name: shard.file for shard in plan.shards for name in shard.tensors}
    index = {"metadata": {"total_size": plan.bytes}, "weight_map": dict(sorted(where.items()))}
    return {
        "config.json": plan.config_json(),
        "model.safetensors.index.json": json.dumps(index, indent=1) + "\n",
        "README.md": model_card(plan),
    }
