"""The configs of public data sets read rows in the published formats: all rows, their labels and their features."""

from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from data_configs import data_config
from public_rows import OVERRIDES, ROWS, WRITERS

from recsys.config.compose import compose, conf_dir
from recsys.data.features.label_columns import label_columns
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.prepare.split import SPLITS


class Case(NamedTuple):
    """What the rows of a data set become.

    labels: the sum of each label over the rows that have it, and the number of these rows
    values: feature -> value -> how often it occurs; the empty text is a missing value
    """

    labels: dict[str, tuple[float, int]]
    values: dict[str, dict[str, int]]
    rows: int = ROWS


LIKED = {"label": (24.0, ROWS)}  # 4 and 5 stars
GENRES = {"Comedy": 20, "Drama": 30, "Action": 10, "Sci-Fi": 10, "Horror": 10, "(no genres listed)": 10}
ITEMS_2018 = {f"B{i:09}": 10 for i in range(1, 7)}
CASES = {
    "movielens_1m_ratings": Case(
        LIKED, {"genres": GENRES, "gender": {"F": 30, "M": 30}, "year": {f"(199{m})": 10 for m in range(1, 7)}}
    ),
    "movielens": Case(LIKED, {"genres": GENRES, "year": {f"(199{m})": 10 for m in range(1, 7)}}),
    "amazon_reviews_2023": Case(LIKED, {"parent_asin": ITEMS_2018, "verified_purchase": {"true": 40, "false": 20}}),
    "taobao_ads": Case(
        {"label": (12.0, ROWS)},
        {"brand": {"": 10} | {str(90 + a): 10 for a in range(2, 7)}, "gender": {"1": 24, "2": 30, "": 6}},
    ),
    "ali_ccp": Case(
        {"click": (20.0, ROWS), "purchase": (10.0, 20)},
        {
            "item": {f"205\x02{4_000_000 + i}": 10 for i in range(1, 7)},
            "user_categories": {"109_14\x02500": 60} | {f"109_14\x02{500 + u}": 6 for u in range(1, 11)},
            "user_class_1": {"121\x023864": 18, "121\x023865": 24, "121\x023866": 18},
        },
    ),
    "kuairand": Case(
        {
            "is_click": (30.0, ROWS),
            "is_like": (20.0, ROWS),
            "is_follow": (15.0, ROWS),
            "is_comment": (12.0, ROWS),
            "is_forward": (10.0, ROWS),
            "is_hate": (9.0, ROWS),
            "long_view": (8.0, ROWS),
            "is_profile_enter": (7.0, ROWS),
        },
        {"follows": {"(0,10]": ROWS}, "active": {"high_active": 30, "full_active": 30}},
    ),
    "kuairec": Case(
        {"label": (40.0, ROWS)}, {"categories": {str(v): 10 for v in range(6)} | {"9": 30}, "follows": {"(0,10]": ROWS}}
    ),
    "yelp": Case(LIKED, {"categories": {"Food": 50, "Restaurants": 50}, "city": {"Tucson": 30, "Reno": 30}}),
    "steam": Case({"label": (45.0, ROWS)}, {"mac": {"true": 30, "false": 30}}),
    "census_income": Case(
        {"income": (8.0, 80), "never_married": (40.0, 80)},
        {"education": {"Masters degree": 80}, "migration_msa": {"": 80}},
        80,
    ),
    "adult": Case({"label": (20.0, 80)}, {"workclass": {"Private": 66, "": 14}}, 80),
    "rossmann": Case(
        {"label": (sum(5000.0 + i for i in range(ROWS) if i % 7 != 6), 52)},
        {"StoreType": {"c": 17, "a": 35}, "StateHoliday": {"0": 52}, "PromoInterval": {"Jan,Apr,Jul,Oct": 35, "": 17}},
        52,
    ),
    "yambda": Case({"label": (1107.0, 1905)}, {"is_organic": {"0": 734, "1": 1171}}, 1905),  # likes are no rows
}
RETRIEVAL = {  # the items; the number of rows of each split
    "movielens_retrieval": ({str(m) for m in range(1, 7)}, (10, 10, 10)),
    "amazon_reviews_2018": (set(ITEMS_2018), (10, 10, 10)),
    "amazon_reviews_2018_ratings": (set(ITEMS_2018), (10, 10, 10)),
    "amazon_reviews_2023_ratings": (set(ITEMS_2018), (10, 10, 10)),
    "gowalla": ({str(22_840 + i) for i in range(1, 7)}, (10, 10, 10)),
    "steam_reviews": ({str(725_280 + i) for i in range(1, 7)}, (10, 10, 10)),
    "diginetica": ({str(81_760 + i) for i in range(6)}, (6, 10, 10)),
    "diginetica_5core": ({str(81_760 + i) for i in range(4)}, (10, 10, 10)),  # the others are held out
    "yoochoose": ({str(214_536_500 + i) for i in range(6)}, (6, 10, 10)),
}


def prepared_rows(name: str, folder: Path, raw: Path, *more: str) -> Prepared:
    arguments = [f"data={name}", f"data.root={raw}", f"data.prepared={folder / 'prepared'}", *more]
    data = data_config(compose("preprocess", arguments))
    check_data(data)
    check_raw_files(data)
    return prepare(data)


def written(name: str, folder: Path) -> Path:
    (folder / "raw").mkdir()
    WRITERS[name](folder / "raw")
    return folder / "raw"


def frame_of(prepared: Prepared) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(f) for split in SPLITS for f in prepared.files(split))


def decoded(prepared: Prepared, frame: pl.DataFrame, feature: str) -> dict[str, int]:
    """Return how often each value of a feature occurs."""
    ids = frame[feature].explode() if frame[feature].dtype == pl.List else frame[feature]
    vocabulary = dict(prepared.fitted.vocabularies[feature].select("id", "value").iter_rows())
    counts: dict[str, int] = {}
    for i in ids.to_list():
        value = vocabulary[i]
        counts[value] = counts.get(value, 0) + 1
    return counts


def test_every_public_set_has_a_case() -> None:
    assert set(WRITERS) == set(CASES) | set(RETRIEVAL)
    assert set(WRITERS) <= {p.stem for p in (conf_dir() / "data").glob("*.yaml")}
    for name in WRITERS:
        text = (conf_dir() / "data" / f"{name}.yaml").read_text()
        assert "(https://" in text.split("\nname:")[0], f"{name} does not name its origin"


@pytest.mark.few(5)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_rankers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    prepared = prepared_rows(
        name, tmp_path, written(name, tmp_path), "data.sparse_defaults.min_count=1", *OVERRIDES.get(name, ())
    )
    assert prepared.info["bad_rows"] == 0 and prepared.rows("test") > 0
    frame = frame_of(prepared)
    assert frame.height == case.rows
    found = {}
    for column, label in zip(label_columns(prepared.fitted.data), prepared.fitted.data.label_configs, strict=True):
        known = frame[column].fill_nan(None).drop_nulls().cast(pl.Float64)
        found[label] = (known.sum(), len(known))
    assert found == case.labels
    for feature, values in case.values.items():
        assert decoded(prepared, frame, feature) == values, feature


@pytest.mark.few(4)
@pytest.mark.parametrize("name", RETRIEVAL)
def test_rows_of_retrieval_models(name: str, tmp_path: Path) -> None:
    items, rows = RETRIEVAL[name]
    feature = data_config(compose("preprocess", [f"data={name}"])).sparse
    first = next(iter(feature))
    prepared = prepared_rows(
        name, tmp_path, written(name, tmp_path), f"++data.sparse.{first}.min_count=1", *OVERRIDES.get(name, ())
    )
    assert prepared.info["bad_rows"] == 0
    assert set(prepared.fitted.item_vocabulary["value"]) == items
    assert tuple(prepared.rows(split) for split in SPLITS) == rows
    lengths: Any = frame_of(prepared)[first].list.len()
    assert lengths.max() == 6  # all items of a user or session, in the last row


@pytest.mark.slow
def test_census_income_as_published(real_data: Any, tmp_path: Path) -> None:
    prepared = prepared_rows("census_income", tmp_path, real_data("census_income"))
    assert prepared.info["bad_rows"] == 0
    assert prepared.info["rows"] == {"train": 179_571, "validation": 19_952, "test": 99_762}
    income, never = list(label_columns(prepared.fitted.data))
    test = pl.concat(pl.read_parquet(f, columns=[income, never]) for f in prepared.files("test"))
    assert test[income].sum() == 6186 and test[never].sum() > 40_000
