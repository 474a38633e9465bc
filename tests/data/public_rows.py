"""Made-up rows in the published formats of public data sets: ROWS rows of 10 users and 6 items, and their side tables."""

import gzip
import json
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

ROWS = 60
USERS, ITEMS = 10, 6
GENRES = ("Comedy|Drama", "Drama", "Action|Sci-Fi", "Comedy", "Horror|Drama", "(no genres listed)")
TIMES = [1_400_000_000 + 3600 * i for i in range(ROWS)]
Row = list[Any]


def user(i: int) -> int:
    return 1 + i % USERS


def item(i: int) -> int:
    return 1 + (i // USERS + i) % ITEMS


def stars(i: int) -> int:
    return 1 + i % 5


def lines(file: Path, rows: list[Row], separator: str = ",", encoding: str = "utf-8", end: str = "\n") -> None:
    file.write_bytes("".join(separator.join(map(str, row)) + end for row in rows).encode(encoding))


def json_lines(file: Path, names: str, rows: list[Row]) -> None:
    """Values of None are left out."""
    known = [{n: v for n, v in zip(names.split(), row, strict=True) if v is not None} for row in rows]
    text = "".join(json.dumps(row) + "\n" for row in known).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)


def date(i: int) -> str:
    return f"2017-{1 + i // 28:02}-{1 + i % 28:02}"


def movielens_1m_ratings(folder: Path) -> None:
    lines(folder / "ratings.dat", [[user(i), item(i), stars(i), TIMES[i]] for i in range(ROWS)], "::")
    people: list[Row] = [[u, "FM"[u % 2], [1, 18, 25, 35][u % 4], u, f"9000{u}"] for u in range(1, USERS + 1)]
    lines(folder / "users.dat", people, "::")
    films: list[Row] = [[m, f"Déjà vu, {m} (199{m})", GENRES[m - 1]] for m in range(1, ITEMS + 1)]
    lines(folder / "movies.dat", films, "::", "latin-1")


def movielens(folder: Path) -> None:
    rows: list[Row] = [[user(i), item(i), f"{stars(i)}.0", TIMES[i]] for i in range(ROWS)]
    lines(folder / "ratings.csv", [["userId", "movieId", "rating", "timestamp"], *rows])
    films: list[Row] = [[m, f'"Film {m}, The ""Cut"" (199{m})"', GENRES[m - 1]] for m in range(1, ITEMS + 1)]
    lines(folder / "movies.csv", [["movieId", "title", "genres"], *films])
    lines(folder / "tags.csv", [["userId", "movieId", "tag", "timestamp"], [1, 1, "funny", TIMES[0]]])


def amazon_reviews_2018(folder: Path) -> None:
    names = "overall verified reviewTime reviewerID asin style reviewerName reviewText summary unixReviewTime vote"
    style, text = ({"Color:": " Red"}, {"Size:": " 5 oz"}), ["J", 'Great, "really"', "Good"]
    rows: list[Row] = [[float(stars(i)), True, "09 1, 2016", f"A{user(i)}", f"B{item(i):09}"] for i in range(ROWS)]
    ends = [[style[i % 2], *text, TIMES[i], "5" if i > 50 else None] for i in range(ROWS)]
    json_lines(folder / "All_Beauty_5.json.gz", names, [a + b for a, b in zip(rows, ends, strict=True)])


def amazon_reviews_2018_ratings(folder: Path) -> None:
    rows: list[Row] = [[f"B{item(i):09}", f"A{user(i)}", f"{stars(i)}.0", TIMES[i]] for i in range(ROWS)]
    lines(folder / "All_Beauty.csv", rows)


def amazon_reviews_2023(folder: Path) -> None:
    names = "rating title text images asin parent_asin user_id timestamp helpful_vote verified_purchase"
    rows: list[Row] = [[float(stars(i)), "Good", 'Great, "really"', [], *[f"B{item(i):09}"] * 2] for i in range(ROWS)]
    ends = [[f"A{user(i)}", 1000 * TIMES[i] + 337, 0, i % 3 > 0] for i in range(ROWS)]
    json_lines(folder / "All_Beauty.jsonl.gz", names, [a + b for a, b in zip(rows, ends, strict=True)])


def amazon_reviews_2023_ratings(folder: Path) -> None:
    rows: list[Row] = [[f"A{user(i)}", f"B{item(i):09}", f"{stars(i)}.0", 1000 * TIMES[i] + 337] for i in range(ROWS)]
    lines(folder / "All_Beauty.csv", [["user_id", "parent_asin", "rating", "timestamp"], *rows])


def taobao_ads(folder: Path) -> None:
    header = ["user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk"]
    rows: list[Row] = [
        [user(i), TIMES[i], item(i), "430548_1007" if i % 2 else "430539_1007", int(i % 5 != 0), int(i % 5 == 0)]
        for i in range(ROWS)
    ]
    lines(folder / "raw_sample.csv", [header, *rows])
    ads: list[Row] = [
        [a, 4000 + a, 80 + a, 10 + a, "NULL" if a == 1 else 90 + a, 170.0 * a] for a in range(1, ITEMS + 1)
    ]
    lines(folder / "ad_feature.csv", [["adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"], *ads])
    header = ["userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level"]
    header += ["shopping_level", "occupation", "new_user_class_level "]
    people: list[Row] = [[u, 0, 5, 1 + u % 2, 2, "" if u < 5 else 1, 3, 0, "" if u < 5 else 2] for u in range(1, USERS)]
    lines(folder / "user_profile.csv", [header, *people])


def ali_ccp(folder: Path) -> None:
    def features(values: list[tuple[str, int]]) -> Row:
        return [len(values), "\x01".join(f"{field}\x02{value}\x031.0" for field, value in values)]

    for split, rows in (("train", range(ROWS - 10)), ("test", range(ROWS - 10, ROWS))):
        people = [
            [f"{split}{u:027x}", *features([("101", u), ("121", 3864 + u % 3), ("109_14", 500), ("109_14", 500 + u)])]
            for u in range(1, USERS + 1)
        ]
        lines(folder / f"common_features_{split}.csv", people)
        skeleton = []
        for i in rows:
            own = [("216", 7), ("301", 1 + i % 3), ("205", 4_000_000 + item(i)), ("206", 8 + item(i) % 2)]
            skeleton.append([i, int(i % 3 == 0), int(i % 6 == 0), f"{split}{user(i):027x}", *features(own)])
        lines(folder / f"sample_skeleton_{split}.csv", skeleton)


def kuairand(folder: Path) -> None:
    actions = ["is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view"]
    header = ["user_id", "video_id", "date", "hourmin", "time_ms", *actions, "play_time_ms", "duration_ms"]
    header += ["profile_stay_time", "comment_stay_time", "is_profile_enter", "is_rand", "tab"]
    rows: list[Row] = []
    for i in range(ROWS):
        done = [int(i % (2 + k) == 0) for k in range(7)]
        when = [date(i).replace("-", ""), 1330, 1000 * TIMES[i] + 305]
        rows.append([user(i), item(i), *when, *done, 1000 * i, 10_000, 0, 0, int(i % 9 == 0), 0, 1])
    lines(folder / "log_standard_4_08_to_4_21_27k_part1.csv", [header, *rows[: ROWS // 2]])
    lines(folder / "log_standard_4_22_to_5_08_27k_part1.csv", [header, *rows[ROWS // 2 :]])
    lines(folder / "log_random_4_22_to_5_08_27k.csv", [header, *rows])
    header = ["user_id", "user_active_degree", "is_lowactive_period", "is_live_streamer", "is_video_author"]
    header += ["follow_user_num", "follow_user_num_range", "fans_user_num", "fans_user_num_range", "friend_user_num"]
    header += ["friend_user_num_range", "register_days", "register_days_range", "onehot_feat0"]
    people: list[Row] = [
        [u, "high_active" if u % 2 else "full_active", 0, 0, 0, 5, '"(0,10]"', 0, "0", 0, "0", 107, "61-90", 0]
        for u in range(1, USERS + 1)
    ]
    lines(folder / "user_features_27k.csv", [header, *people])


def kuairec(folder: Path) -> None:
    header = ["user_id", "video_id", "play_duration", "video_duration", "time", "date", "timestamp", "watch_ratio"]
    rows: list[Row] = []
    for i in range(ROWS):
        when = [f"{date(i)} 00:00:12.305", date(i).replace("-", ""), f"{TIMES[i]}.305"]
        rows.append([user(i) - 1, item(i) - 1, 1000 * i, 10_000, *when, 1000 * i / 10_000])
    lines(folder / "big_matrix.csv", [header, *rows])
    header = ["user_id", "user_active_degree", "is_lowactive_period", "is_live_streamer", "is_video_author"]
    header += ["follow_user_num", "follow_user_num_range", "fans_user_num", "fans_user_num_range", "friend_user_num"]
    header += ["friend_user_num_range", "register_days", "register_days_range", "onehot_feat0", "onehot_feat1"]
    people: list[Row] = [
        [u, "high_active" if u % 2 else "full_active", 0, 0, u % 2, 5, '"(0,10]"', 0, 0, 0, 0, 107, "61-90", 0, ""]
        for u in range(USERS)
    ]
    lines(folder / "user_features.csv", [header, *people])
    videos: list[Row] = [[v, f'"[{v}, 9]"' if v % 2 else f"[{v}]"] for v in range(ITEMS)]
    lines(folder / "item_categories.csv", [["video_id", "feat"], *videos])


def yelp(folder: Path) -> None:
    rows: list[Row] = [
        [f"r{i}", f"u{user(i)}", f"b{item(i)}", float(stars(i)), 0, 0, 0, 'Nice,\nand "cosy"', f"{date(i)} 22:09:11"]
        for i in range(ROWS)
    ]
    names = "review_id user_id business_id stars useful funny cool text date"
    json_lines(folder / "yelp_academic_dataset_review.json", names, rows)
    names = "business_id name city state stars attributes categories hours"
    places: list[Row] = []
    for b in range(1, ITEMS + 1):
        where, by = (("Reno", "NV"), ("Tucson", "AZ"))[b % 2], (None, {"ByAppointmentOnly": "True"})[b % 2]
        categories = None if b == 1 else "Food, Restaurants"
        places.append([f"b{b}", "A, B", *where, 3.5, by, categories, {"Monday": "8:0-18:30"}])
    json_lines(folder / "yelp_academic_dataset_business.json", names, places)
    (folder / "business.jsonl").symlink_to("yelp_academic_dataset_business.json")


def gowalla(folder: Path) -> None:
    rows: list[Row] = [[user(i) - 1, f"{date(i)}T23:55:27Z", 30.2359, -97.795, 22_840 + item(i)] for i in range(ROWS)]
    lines(folder / "loc-gowalla_totalCheckins.txt", rows[::-1], "\t")


def candidates(folder: Path, sources: Sequence[str], rest: Callable[[int], dict[str, Any]]) -> None:
    """Write what `recsys.pipeline candidates` writes: columns of users and items, scores and ranks, and the label."""
    rows = []
    for i in range(ROWS):
        found: dict[str, float | None] = {}
        for j, s in enumerate(sources):
            found[f"{s}_score"], found[f"{s}_rank"] = (None, None) if i % 7 == j else ((i % 5) / 3, 1.0 + i % 9)
        rows.append({**rest(i), **found, "wanted": int(i % 3 == 0)})
    frame = pl.DataFrame(rows)  # those of a user lie one after another
    frame.sort(frame.columns[0], maintain_order=True).write_parquet(folder / "candidates.parquet")


def movielens_100k_candidates(folder: Path) -> None:
    def rest(i: int) -> dict[str, Any]:
        own = {"user_id": str(user(i)), "item_id": str(item(i)), "age": 20 + user(i), "gender": "FM"[user(i) % 2]}
        genres = GENRES[item(i) - 1].replace("|", " ")
        return {**own, "occupation": "artist", "year": str(1990 + item(i)), "genres": genres}

    candidates(folder, ("ease", "item_knn", "two_tower", "popular"), rest)


def movielens_1m_candidates(folder: Path) -> None:
    candidates(
        folder, ("sasrec", "ease", "item_knn", "popular"), lambda i: {"user": str(user(i)), "item": str(item(i))}
    )


def steam(folder: Path) -> None:
    header = ["app_id", "helpful", "funny", "date", "is_recommended", "hours", "user_id", "review_id"]
    rows: list[Row] = [
        [item(i), 0, 0, date(i), "true" if i % 4 else "false", f"{i}.3", user(i), i] for i in range(ROWS)
    ]
    lines(folder / "recommendations.csv", [header, *rows])
    header = ["app_id", "title", "date_release", "win", "mac", "linux", "rating", "positive_ratio", "user_reviews"]
    header += ["price_final", "price_original", "discount", "steam_deck"]
    rated = ["Positive", 84, 2199, 9.99, 9.99, "0.0", "true"]
    games: list[Row] = [
        [a, f'"Game, {a}"', date(a), "true", "true" if a % 2 else "false", "false", *rated] for a in range(1, ITEMS + 1)
    ]
    lines(folder / "games.csv", [header, *games])
    lines(folder / "users.csv", [["user_id", "products", "reviews"], [1, 359, 0]])


def steam_reviews(folder: Path) -> None:
    rows: list[Row] = [
        [f"u{user(i)}", 13.2, 304.0, f"{725280 + item(i)}", 0, date(i), "does what it says", False, 1]
        for i in range(ROWS)
    ]
    names = "username hours products product_id page_order date text early_access page"
    json_lines(folder / "steam_reviews.jsonl", names, rows)


def diginetica(folder: Path) -> None:
    header = ["sessionId", "userId", "itemId", "timeframe", "eventdate"]
    rows: list[Row] = [
        [1 + i // 6, "NA", 81_760 + i % 6, 500 * (i % 6), f"2016-05-{9 + i // 6:02}"] for i in range(ROWS)
    ]
    lines(folder / "train-item-views.csv", [header, *rows], ";")
    categories: list[Row] = [[81_760 + k, 1096 + k % 2] for k in range(6)]
    lines(folder / "product-categories.csv", [["itemId", "categoryId"], *categories], ";")


def yoochoose(folder: Path) -> None:
    rows: list[Row] = [
        [1 + i // 6, f"{date(i // 6)}T10:5{i % 6}:09.277Z", 214_536_500 + i % 6, "S" if i % 2 else 0]
        for i in range(ROWS)
    ]
    lines(folder / "yoochoose-clicks.dat", rows)


def census_income(folder: Path) -> None:
    def row(i: int) -> Row:
        values: Row = ["Not in universe"] * 42
        for place in (5, 16, 17, 18, 30, 39):  # numbers
            values[place] = 0
        married = "Never married" if i % 2 else "Divorced"
        values[0], values[4], values[7], values[24], values[25] = 20 + i, "Masters degree", married, 1700.09, "?"
        values[40], values[41] = 94, "50000+." if i % 10 == 0 else "- 50000."
        return values

    lines(folder / "census-income.data", [row(i) for i in range(ROWS)], ", ")
    lines(folder / "census-income.test", [row(i) for i in range(20)], ", ")


def adult(folder: Path) -> None:
    def row(i: int, end: str) -> Row:
        work, income = "?" if i % 6 == 0 else "Private", ">50K" if i % 4 == 0 else "<=50K"
        person = ["Bachelors", 13, "Never-married", "Sales", "Husband", "White", "Male", 2174, 0, 40, "United-States"]
        return [20 + i, work, 77516, *person, income + end]

    lines(folder / "adult.data", [*(row(i, "") for i in range(ROWS)), []], ", ")
    lines(folder / "adult.test", [["|1x3 Cross validator"], *(row(i, ".") for i in range(20)), []], ", ")


def rossmann(folder: Path) -> None:
    names = ["Store", "DayOfWeek", "Date", "Sales", "Customers", "Open", "Promo", "StateHoliday", "SchoolHoliday"]
    rows: list[Row] = []
    for i in range(ROWS):
        closed = i % 7 == 6
        sales = 0 if closed else 5000 + i
        rows.append([1 + i % 3, 1 + i % 7, date(i), sales, sales // 10, int(not closed), i % 2, '"0"', '"1"'])
    lines(folder / "train.csv", [[f'"{n}"' for n in names], *rows[::-1]])
    names = ["Store", "StoreType", "Assortment", "CompetitionDistance", "CompetitionOpenSinceMonth"]
    names += ["CompetitionOpenSinceYear", "Promo2", "Promo2SinceWeek", "Promo2SinceYear", "PromoInterval"]
    stores: list[Row] = [
        [1, '"c"', '"a"', 1270, 9, 2008, 0, "", "", '""'],
        [2, '"a"', '"a"', "", "", "", 1, 13, 2010, '"Jan,Apr,Jul,Oct"'],
        [3, '"a"', '"c"', 570, 11, 2007, 1, 13, 2010, '"Jan,Apr,Jul,Oct"'],
    ]
    lines(folder / "store.csv", [[f'"{n}"' for n in names], *stores])


def yambda(folder: Path) -> None:
    script = Path(__file__).parents[2] / "experiments" / "mlperf_dlrmv4" / "generate.py"
    runpy.run_path(str(script))["write"](folder, users=20, days=12)


NAMES = """movielens_1m_ratings movielens amazon_reviews_2018 amazon_reviews_2018_ratings amazon_reviews_2023
    amazon_reviews_2023_ratings taobao_ads ali_ccp kuairec yelp gowalla steam steam_reviews diginetica yoochoose
    census_income adult rossmann yambda kuairand"""
WRITERS: dict[str, Callable[[Path], None]] = {name: globals()[name] for name in NAMES.split()}
WRITERS |= {"movielens_retrieval": movielens, "diginetica_5core": diginetica}
CANDIDATES: dict[str, Callable[[Path], None]] = {  # written by recsys.pipeline, in no published format
    write.__name__: write for write in (movielens_100k_candidates, movielens_1m_candidates)
}

SESSIONS = ("data.split.validation=0.2", "data.split.test=0.2")  # two of ten sessions
YAMBDA = ("data.split.validation=0.08", "data.split.test=0.08")  # a day of twelve
OVERRIDES = {  # for so few rows
    "kuairand": ("data.split.validation=0.2", "data.split.test=0.2"),
    "taobao_ads": ("data.split.validation=0.4",),  # whole days of three
    "yambda": YAMBDA,
    "diginetica": SESSIONS,
    "yoochoose": SESSIONS,
}
