"""Run by an interpreter that has Feast: REPOSITORY POINTS.parquet OUTPUT. Asks Feast for values, past and online.

POINTS has `ts` and a column for each key; OUTPUT gets VIEW.parquet, past values, and online.json, those of the last point.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from feast import FeatureStore

repository, points, output = map(Path, sys.argv[1:])
store = FeatureStore(repo_path=str(repository))
asked = pd.read_parquet(points).rename(columns={"ts": "event_timestamp"})
end = asked["event_timestamp"].max().to_pydatetime()
if end.tzinfo is None:
    end = end.replace(tzinfo=UTC)
store.materialize(datetime(1900, 1, 1, tzinfo=UTC), end)
online = {}
for view in store.list_feature_views():
    features = [f"{view.name}:{f.name}" for f in view.features]
    key = view.join_keys[0]
    found = store.get_historical_features(asked[[key, "event_timestamp", "place"]], features).to_df()
    found.to_parquet(output / f"{view.name}.parquet")
    entities = [{key: k.item() if hasattr(k, "item") else k} for k in asked[key].unique()]
    online[view.name] = store.get_online_features(features, entities).to_dict()
(output / "online.json").write_text(json.dumps(online, default=str))
