"""Stands behind `slurm.command`: answers `scontrol` with the recorded output of one release.

Usage: replay.py FOLDER KIND [env …] scontrol WORDS…, KIND being `scontrol` (the recorded scenario) or `odd` (jobs
with hostile names).
"""

import sys
from pathlib import Path


def main() -> int:
    folder, kind, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    words = words[words.index("scontrol") + 1 :]
    if words == ["--version"]:
        answer = folder / "sinfo_version.txt"
    elif words == ["show", "config"]:
        answer = folder / "scontrol_show_config.txt"
    else:
        answer = folder / f"{kind}_show_{words[-1]}.{'json' if '--json' in words else 'txt'}"
    sys.stdout.buffer.write(answer.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
