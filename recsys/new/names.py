"""Words in the names of columns that say what a column holds."""

import re

LABELS = (  # the strongest first
    *("label", "target", "y", "click", "clicked", "is_click", "is_clicked", "clk", "isclick", "ctr_label"),
    *("converted", "conversion", "is_conversion", "is_converted", "cvr_label", "purchased", "purchase", "bought"),
    *("is_purchase", "is_buy", "is_attributed", "is_installed", "installed", "response", "outcome", "class", "income"),
    *("survived", "churn", "churned", "exited", "default", "is_fraud", "fraud", "subscribed", "deposit", "is_like"),
    *(
        "like",
        "liked",
        "positive",
        "engaged",
        "engagement",
        "feedback",
        "watched",
        "finished",
        "long_view",
        "effective",
    ),
    *("result", "success", "is_positive", "relevance", "booked", "booking_bool", "click_bool", "labels", "targets"),
)
AMOUNTS = (  # numbers that people predict, the likeliest first
    *("sales", "saleprice", "sales_price", "revenue", "cnt", "demand", "unit_sales", "units_sold", "weekly_sales"),
    *("trip_duration", "item_cnt_day", "total_sales", "totals_revenue", "transaction_revenue"),
)
PERHAPS_AMOUNTS = ("price", "amount", "count", "duration")  # the same, only if nothing else can be the label
RATINGS = (
    "rating",
    "ratings",
    "rate",
    "score",
    "stars",
    "star",
    "overall",
    "star_rating",
    "book_rating",
    "grade",
    "vote",
)
EVENTS = (
    "event",
    "event_type",
    "event_name",
    "action",
    "action_type",
    "behavior",
    "behaviour",
    "behavior_type",
    "type",
)
EVENT_POSITIVES = (  # the rarest kind of event that a recommender is to predict, the strongest first
    *("purchase", "buy", "transaction", "order", "checkout", "conversion", "convert", "install", "subscribe", "book"),
    *("addtocart", "add_to_cart", "cart", "fav", "click", "like", "play", "watch", "view", "pv"),
)
WEIGHTS = ("weight", "sample_weight", "instance_weight", "weights", "importance", "wt", "fnlwgt")
USERS = (
    *("user", "customer", "client", "member", "visitor", "account", "reviewer", "buyer", "player", "person", "viewer"),
    *("subscriber", "uid", "userid", "msno", "cookie", "fullvisitorid", "shopper", "guest", "consumer", "profile"),
)
SESSIONS = ("session", "sessionid", "device")
ITEMS = (
    *(
        "item",
        "movie",
        "product",
        "article",
        "news",
        "song",
        "track",
        "book",
        "app",
        "sku",
        "asin",
        "business",
        "video",
    ),
    *(
        "game",
        "anime",
        "isbn",
        "aid",
        "listing",
        "hotel",
        "restaurant",
        "recipe",
        "iid",
        "itemid",
        "movieid",
        "artist",
        "ad",
    ),
    *(
        "aid",
        "goods",
        "course",
        "post",
        "pin",
        "feed",
        "show",
        "creative",
        "offer",
        "coupon",
        "job",
        "document",
        "story",
    ),
)
TIMES = (
    "timestamp",
    "time",
    "date",
    "datetime",
    "ts",
    "day",
    "hour",
    "created",
    "at",
    "when",
    "dt",
    "unixreviewtime",
    "occurred",
)
CODES = (  # whole numbers under such a name are codes, not quantities
    *("id", "code", "type", "category", "cat", "zip", "zipcode", "postcode", "class", "group", "segment", "status"),
    *("flag", "is", "has", "region", "recode", "brand", "level", "channel", "cluster", "hash", "key", "index", "idx"),
)
QUANTITIES = (
    *("age", "count", "cnt", "num", "number", "amount", "price", "cost", "hours", "hrs", "weeks", "days", "minutes"),
    *("seconds", "duration", "length", "size", "total", "sum", "avg", "mean", "max", "min", "ratio", "rate", "score"),
    *("wage", "salary", "gain", "gains", "loss", "losses", "quantity", "qty", "distance", "views", "clicks", "revenue"),
    *("budget", "votes", "balance", "income", "percent", "pct", "worked", "popularity", "temperature", "year"),
)


def words(name: str) -> list[str]:
    """Return the words of a column's name in small letters: userId, user_id and user-id:token are user, id."""
    name = re.sub(r":(token|float|token_seq|float_seq)$", "", name.strip())  # RecBole's types
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [w for w in re.split(r"[^0-9a-z]+", name.lower()) if w]


def plain(name: str) -> str:
    """Return the words joined by underscores."""
    return "_".join(words(name))


def rank_of(name: str, among: tuple[str, ...]) -> int | None:
    """Return the place of a column's name among known names, None if it is not one of them."""
    for form in (plain(name), plain(name).replace("_", "")):
        if form in among:
            return among.index(form)
    return None


def has_word(name: str, among: tuple[str, ...]) -> bool:
    """Return True if one of the words of a column's name is among the known ones."""
    return any(w in among for w in [*words(name), plain(name), plain(name).replace("_", "")])


def names_an_id_of(name: str, among: tuple[str, ...]) -> bool:
    """Return True for user, user_id, userId, uid, reviewerID and the like, but not for user_age."""
    own = words(name)
    rest = [
        w
        for w in own
        if w
        not in (
            "id",
            "ids",
            "key",
            "code",
            "no",
            "nr",
            "number",
            "parent",
            "hash",
            "hashed",
            "index",
            "idx",
            "name",
            "the",
            "target",
            "buying",
        )
    ]
    joined = "".join(own)
    ends = joined.removesuffix("id").removesuffix("_")
    return (len(rest) == 1 and rest[0] in among and len(own) <= 3) or joined in among or ends in among


KNOWN = frozenset({*LABELS, *RATINGS, *EVENTS, *WEIGHTS, *USERS, *ITEMS, *TIMES, *CODES, *QUANTITIES, *SESSIONS})
