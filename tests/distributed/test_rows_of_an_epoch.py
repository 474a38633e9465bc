"""The rows of an epoch in which the number of processes changes: each is trained on once."""

from pathlib import Path

import pytest
from jobs import Job

ROWS, BATCH = 2000, 80  # 1600 rows to train on: 20 steps
DATA = """
name: counted
source: {files: ["*.csv"]}
label: {column: y}
dense: {row: {fill: 0, transform: []}}
sparse: {s: {}}
"""


@pytest.mark.slow  # test_lanes.py has the loader's part
def test_each_row_is_trained_on_once(home: Path, tmp_path: Path) -> None:
    """Two processes begin the epoch, four go on, one ends it and does the next."""
    raw, seen = tmp_path / "raw", tmp_path / "seen"
    raw.mkdir()
    seen.mkdir()
    lines = "".join(f"{row % 2},{row},{row % 7}\n" for row in range(ROWS))
    (raw / "rows.csv").write_text(f"y,row,s\n{lines}")
    (home / "conf" / "data").mkdir(exist_ok=True)
    (home / "conf" / "data" / "counted.yaml").write_text(DATA)
    (home / "conf" / "model" / "recording.yaml").write_text("_target_: recording_model.Recording\nfolder: ???\n")
    common = ["data=counted", f"data.root={raw}", "model=recording", f"model.folder={seen}", "sharding=rowwise"]
    common += [f"trainer.batch_size={BATCH}", "trainer.threads=1", "trainer.max_epochs=2", f"run_dir={tmp_path}/run"]
    counts = []
    for world_size, max_steps in ((2, 6), (4, 13), (1, -1)):
        job = Job(home, tmp_path / f"output-{world_size}")
        job.fork_ranks(world_size, "recsys.train", *common, f"trainer.max_steps={max_steps}", "resume=auto")
        try:
            assert job.wait() == [0] * world_size, job.output.read_text()[-3000:]
        finally:
            job.kill()
        said = f"{ {4: 2, 1: 4}.get(world_size) } processes wrote the checkpoint and {world_size} read it: dropout"
        assert (said in job.output.read_text()) == (world_size != 2)
        rows = [int(row) for file in seen.iterdir() for row in file.read_text().split()]
        counts.append(len(rows))
        if max_steps != -1:
            assert len(set(rows)) == len(rows)
    trained = range(ROWS * 8 // 10)
    assert counts == [6 * BATCH, 13 * BATCH, 2 * len(trained)]
    assert sorted(rows) == sorted([*trained, *trained])
