"""Names of the files in a run folder, on which other programs rely."""

CONFIG = "config.yaml"
DATA = "data.json"
CALIBRATION = "calibration.json"  # how predictions are calibrated, if they are
# written at the end, and read by recsys.report
RESULTS = ("metrics.json", "metrics.csv", "curves.json", "test_predictions.parquet", "test_ranks.parquet")
# Everything that a run writes to its folder, config.yaml last; other files in it are the user's.
OWN = (
    *("checkpoints", "vocabularies", "items", "sides", "raw.parquet", "features.json", "transforms.json", "plan.json"),
    *(
        *RESULTS,
        CALIBRATION,
        "validation_*.parquet",
        "test_predictions_*.parquet",
        "evaluate-*.json",
        "manifest.json",
        DATA,
        "train.log",
    ),
    *("profile", "tensorboard", "wandb", "wandb_id", ".owner.json", CONFIG),
)
